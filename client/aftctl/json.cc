#include "client/aftctl/json.h"

#include "base/check.h"
#include "base/utf8.h"
#include "client/lib/error_details.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"

namespace aft::client {
namespace {

namespace pb = google::protobuf;

std::string ToJson(const pb::Message& message) {
  pb::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  AFT_CHECK(pb::util::MessageToJsonString(message, &json, options).ok());  // fails only for Any
  return json;
}

}  // namespace

std::string JsonLine(const pb::Message& message) { return ToJson(message) + "\n"; }

std::string JsonErrorLine(const absl::Status& status) {
  pb::Struct line;
  auto& error = *(*line.mutable_fields())["error"].mutable_struct_value()->mutable_fields();
  const auto add_message = [&error](const char* name, const pb::Message& message) {
    AFT_CHECK(pb::util::JsonStringToMessage(ToJson(message), &error[name]).ok());
  };
  const ErrorDetails details = GetErrorDetails(status);
  error["code"].set_string_value(absl::StatusCodeToString(status.code()));
  error["message"].set_string_value(ToValidUtf8(status.message()));
  if (!details.request_id.empty()) error["request_id"].set_string_value(details.request_id);
  if (details.retry_after) {
    error["retry_after_ms"].set_number_value(static_cast<double>(details.retry_after->count()));
  }
  if (details.usage) add_message("usage", *details.usage);
  if (details.timings) add_message("timings", *details.timings);
  return JsonLine(line);
}

}  // namespace aft::client
