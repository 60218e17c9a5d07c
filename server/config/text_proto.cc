#include "server/config/text_proto.h"

#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"

namespace aft::server {
namespace {

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

}  // namespace

absl::Status ParseTextProto(absl::string_view text, absl::string_view file_name,
                            google::protobuf::Message& message) {
  FirstError errors(file_name);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  if (parser.ParseFromString(std::string(text), &message)) return absl::OkStatus();
  AFT_RETURN_IF_ERROR(errors.status());
  return absl::InvalidArgumentError(absl::StrCat(file_name, ": cannot be parsed"));
}

absl::StatusOr<std::string> ReadConfigFile(const std::string& path, int64_t max_bytes) {
  return ReadFile(path, static_cast<size_t>(max_bytes));
}

}  // namespace aft::server
