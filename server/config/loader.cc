#include "server/config/loader.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aft/config/v1/server_config.pb.h"
#include "base/status_macros.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"

namespace aft::server {
namespace {

namespace pb = aft::config::v1;

// Keeps the first error; protobuf counts lines and columns from 0.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  explicit FirstError(absl::string_view file_name) : file_name_(file_name) {}

  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        absl::StrCat(file_name_, ":", line + 1, ":", column + 1, ": ", message));
  }

  const absl::Status& status() const { return status_; }

 private:
  const std::string file_name_;
  absl::Status status_;
};

// Leaves the default where the field is absent.
#define AFT_TAKE(target, message, field) \
  if ((message).has_##field()) (target) = (message).field()

ModelConfig FromProto(const pb::ModelConfig& message, const std::string& base_dir) {
  ModelConfig model;
  if (!message.path().empty()) {
    // An absolute path replaces the base.
    model = DefaultModelConfig((std::filesystem::path(base_dir) / message.path()).string());
  }
  AFT_TAKE(model.name, message, name);
  AFT_TAKE(model.device, message, device);
  AFT_TAKE(model.weight_format, message, weight_format);
  AFT_TAKE(model.slots, message, slots);
  AFT_TAKE(model.max_step_tokens, message, max_step_tokens);
  AFT_TAKE(model.intra_op_threads, message, intra_op_threads);
  AFT_TAKE(model.version, message, version);
  if (message.batch().has_max_delay_us()) {
    model.max_batch_delay = std::chrono::microseconds(message.batch().max_delay_us());
  }
  AFT_TAKE(model.max_batch_rows, message.batch(), max_rows);
  AFT_TAKE(model.max_batch_tokens, message.batch(), max_tokens);
  return model;
}

LimitsConfig FromProto(const pb::LimitsConfig& message) {
  LimitsConfig limits;
  AFT_TAKE(limits.max_queued_requests, message, max_queued_requests);
  AFT_TAKE(limits.max_queued_tokens, message, max_queued_tokens);
  AFT_TAKE(limits.max_prompt_bytes, message, max_prompt_bytes);
  AFT_TAKE(limits.max_prompt_tokens, message, max_prompt_tokens);
  AFT_TAKE(limits.default_max_tokens, message, default_max_tokens);
  AFT_TAKE(limits.max_max_tokens, message, max_max_tokens);
  AFT_TAKE(limits.max_stream_buffer_bytes, message, max_stream_buffer_bytes);
  AFT_TAKE(limits.max_concurrent_streams, message, max_concurrent_streams);
  return limits;
}

ServerConfig FromProto(const pb::ServerConfig& message, const std::string& base_dir) {
  ServerConfig config;
  AFT_TAKE(config.listen_address, message, listen_address);
  AFT_TAKE(config.metrics_address, message, metrics_address);
  for (const pb::ModelConfig& model : message.models()) {
    config.models.push_back(FromProto(model, base_dir));
  }
  config.limits = FromProto(message.limits());
  if (message.drain().has_lame_duck_ms()) {
    config.drain.lame_duck = std::chrono::milliseconds(message.drain().lame_duck_ms());
  }
  if (message.drain().has_grace_ms()) {
    config.drain.grace = std::chrono::milliseconds(message.drain().grace_ms());
  }
  AFT_TAKE(config.log.level, message.log(), level);
  AFT_TAKE(config.log.format, message.log(), format);
  return config;
}

#undef AFT_TAKE

void ToProto(const ModelConfig& model, pb::ModelConfig& message) {
  message.set_name(model.name);
  message.set_path(model.checkpoint_dir);
  message.set_device(model.device);
  message.set_weight_format(model.weight_format);
  message.set_slots(model.slots);
  message.set_max_step_tokens(static_cast<int32_t>(model.max_step_tokens));
  message.set_intra_op_threads(model.intra_op_threads);
  message.set_version(model.version);
  pb::BatchConfig& batch = *message.mutable_batch();
  batch.set_max_delay_us(static_cast<int32_t>(model.max_batch_delay.count()));
  batch.set_max_rows(static_cast<int32_t>(model.max_batch_rows));
  batch.set_max_tokens(static_cast<int32_t>(model.max_batch_tokens));
}

void ToProto(const LimitsConfig& limits, pb::LimitsConfig& message) {
  message.set_max_queued_requests(limits.max_queued_requests);
  message.set_max_queued_tokens(limits.max_queued_tokens);
  message.set_max_prompt_bytes(limits.max_prompt_bytes);
  message.set_max_prompt_tokens(limits.max_prompt_tokens);
  message.set_default_max_tokens(limits.default_max_tokens);
  message.set_max_max_tokens(limits.max_max_tokens);
  message.set_max_stream_buffer_bytes(limits.max_stream_buffer_bytes);
  message.set_max_concurrent_streams(limits.max_concurrent_streams);
}

}  // namespace

ModelConfig DefaultModelConfig(const std::string& dir) {
  std::filesystem::path path = std::filesystem::path(dir).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "models/austen/"
  ModelConfig model;
  model.checkpoint_dir = path.string();
  model.name = path.filename().string();
  return model;
}

absl::StatusOr<ServerConfig> ParseServerConfig(absl::string_view text, absl::string_view file_name,
                                               const std::string& base_dir) {
  FirstError errors(file_name);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  pb::ServerConfig message;
  if (!parser.ParseFromString(std::string(text), &message)) {
    AFT_RETURN_IF_ERROR(errors.status());
    return absl::InvalidArgumentError(absl::StrCat(file_name, ": cannot be parsed"));
  }
  return FromProto(message, base_dir);
}

absl::StatusOr<ServerConfig> LoadServerConfig(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const int open_error = errno;
  std::error_code ignored;
  if (!file || std::filesystem::is_directory(path, ignored)) {
    const int error = file ? EISDIR : open_error;
    return absl::ErrnoToStatus(error, absl::StrCat("cannot read config file ", path));
  }
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) return absl::DataLossError(absl::StrCat("cannot read config file ", path));
  return ParseServerConfig(text, path, std::filesystem::path(path).parent_path().string());
}

std::string FormatEffectiveConfig(const ServerConfig& config) {
  pb::ServerConfig message;
  message.set_listen_address(config.listen_address);
  message.set_metrics_address(config.metrics_address);
  for (const ModelConfig& model : config.models) ToProto(model, *message.add_models());
  ToProto(config.limits, *message.mutable_limits());
  message.mutable_drain()->set_lame_duck_ms(static_cast<int32_t>(config.drain.lame_duck.count()));
  message.mutable_drain()->set_grace_ms(static_cast<int32_t>(config.drain.grace.count()));
  message.mutable_log()->set_level(config.log.level);
  message.mutable_log()->set_format(config.log.format);
  std::string text;
  google::protobuf::TextFormat::PrintToString(message, &text);
  return text;
}

}  // namespace aft::server
