#include "server/config/text_proto.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
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
  std::ifstream file(path, std::ios::binary);
  const int open_error = errno;
  std::error_code ignored;
  if (!file || std::filesystem::is_directory(path, ignored)) {
    const int error = file ? EISDIR : open_error;
    return absl::ErrnoToStatus(error, absl::StrCat("cannot read config file ", path));
  }
  // Reads in parts, because the length of a pipe or another special file is not known in advance.
  std::string text;
  std::string part(size_t{64} << 10, '\0');
  while (file.read(part.data(), static_cast<std::streamsize>(part.size())), file.gcount() > 0) {
    text.append(part, 0, static_cast<size_t>(file.gcount()));
    if (static_cast<int64_t>(text.size()) > max_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("cannot read config file ", path,
                                                       ": it has more than ", max_bytes, " bytes"));
    }
  }
  if (file.bad()) return absl::DataLossError(absl::StrCat("cannot read config file ", path));
  return text;
}

}  // namespace aft::server
