#include "server/config/loader.h"

#include <cerrno>
#include <chrono>
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

template <typename Value>
const Value& ToField(const Value& value) {
  return value;
}
template <typename Period>
int64_t ToField(std::chrono::duration<int64_t, Period> value) {
  return value.count();
}

// A value of the config and its field of the file: one list of both, for reading, where an absent
// field leaves the default, and for writing.
#define AFT_FIELD(value, message, field)                                             \
  if constexpr (kRead) {                                                             \
    if ((message).has_##field()) (value) = decltype(value)((message).field());       \
  } else {                                                                           \
    (message).set_##field(static_cast<decltype((message).field())>(ToField(value))); \
  }

template <bool kRead>
void Exchange(ModelConfig& model, pb::ModelConfig& message) {
  AFT_FIELD(model.name, message, name);
  AFT_FIELD(model.device, message, device);
  AFT_FIELD(model.weight_format, message, weight_format);
  AFT_FIELD(model.slots, message, slots);
  AFT_FIELD(model.max_step_tokens, message, max_step_tokens);
  AFT_FIELD(model.intra_op_threads, message, intra_op_threads);
  AFT_FIELD(model.version, message, version);
  pb::BatchConfig& batch = *message.mutable_batch();
  AFT_FIELD(model.max_batch_delay, batch, max_delay_us);
  AFT_FIELD(model.max_batch_rows, batch, max_rows);
  AFT_FIELD(model.max_batch_tokens, batch, max_tokens);
}

template <bool kRead>
void Exchange(LimitsConfig& limits, pb::LimitsConfig& message) {
  AFT_FIELD(limits.max_queued_requests, message, max_queued_requests);
  AFT_FIELD(limits.max_queued_tokens, message, max_queued_tokens);
  AFT_FIELD(limits.max_prompt_bytes, message, max_prompt_bytes);
  AFT_FIELD(limits.max_prompt_tokens, message, max_prompt_tokens);
  AFT_FIELD(limits.default_max_tokens, message, default_max_tokens);
  AFT_FIELD(limits.max_max_tokens, message, max_max_tokens);
  AFT_FIELD(limits.max_stream_buffer_bytes, message, max_stream_buffer_bytes);
  AFT_FIELD(limits.max_concurrent_streams, message, max_concurrent_streams);
}

// All but the models.
template <bool kRead>
void Exchange(ServerConfig& config, pb::ServerConfig& message) {
  AFT_FIELD(config.listen_address, message, listen_address);
  AFT_FIELD(config.metrics_address, message, metrics_address);
  Exchange<kRead>(config.limits, *message.mutable_limits());
  AFT_FIELD(config.drain.lame_duck, *message.mutable_drain(), lame_duck_ms);
  AFT_FIELD(config.drain.grace, *message.mutable_drain(), grace_ms);
  AFT_FIELD(config.log.level, *message.mutable_log(), level);
  AFT_FIELD(config.log.format, *message.mutable_log(), format);
}

#undef AFT_FIELD

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
  ServerConfig config;
  Exchange<true>(config, message);
  for (pb::ModelConfig& model : *message.mutable_models()) {
    config.models.emplace_back();
    if (!model.path().empty()) {
      // An absolute path replaces the base.
      config.models.back() =
          DefaultModelConfig((std::filesystem::path(base_dir) / model.path()).string());
    }
    Exchange<true>(config.models.back(), model);
  }
  return config;
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

std::string FormatEffectiveConfig(ServerConfig config) {
  pb::ServerConfig message;
  Exchange<false>(config, message);
  for (ModelConfig& model : config.models) {
    pb::ModelConfig& added = *message.add_models();
    Exchange<false>(model, added);
    added.set_path(model.checkpoint_dir);
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(message, &text);
  return text;
}

}  // namespace aft::server
