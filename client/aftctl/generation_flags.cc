#include "client/aftctl/generation_flags.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "aft/v1/generation_options.pb.h"
#include "base/utf8.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"

namespace aft::client {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

class Silence : public google::protobuf::io::ErrorCollector {
  void AddError(int, google::protobuf::io::ColumnNumber, const std::string&) override {}
};

// Sets the field to the value in `text`, or adds that value. Returns false if it does not fit the
// field's type.
bool Put(std::string text, const FieldDescriptor& field, Message& part) {
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    text = absl::StrCat("\"", absl::CEscape(text), "\"");
  } else if (field.is_map()) {  // such as "50256:-100"
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(text, absl::MaxSplits(':', 1));
    text = absl::StrCat("{ key: ", halves.first, " value: ", halves.second, " }");
  }
  Silence errors;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  return parser.ParseFieldValueFromString(text, &field, &part);
}

std::string TypeOf(const FieldDescriptor& field) {
  if (field.is_map()) return "ID:BIAS";
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_FLOAT) return "FLOAT";
  return field.cpp_type() == FieldDescriptor::CPPTYPE_STRING ? "TEXT" : "UINT";
}

// The help text with its default: "default 1" or "default: the server's".
std::string HelpOf(const v1::GenerationOption& about) {
  if (about.unset().empty()) return about.help();
  const char* const colon = absl::ascii_isdigit(about.unset().front()) ? " " : ": ";
  return absl::StrCat(about.help(), "; default", colon, about.unset());
}

// `part` is the field of the request whose message has `field`; null means the request itself.
void AddFlag(CLI::App& app, const v1::GenerationOption& about, v1::GenerateRequest& request,
             const FieldDescriptor* part, const FieldDescriptor& field) {
  const auto put = [&request, part, &field](const std::string& text) {
    Message& message =
        part == nullptr ? request : *request.GetReflection()->MutableMessage(&request, part);
    return Put(text, field, message);
  };
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    app.add_flag_callback(
        about.flag(), [put] { put("true"); }, HelpOf(about));
    return;
  }
  // CLI11 would parse the single value "[END]" as a list with END if the option were a vector. A
  // flag that may be repeated takes one value each time, so that it swallows no argument after it.
  CLI::Option* const option =
      field.is_repeated()
          ? app.add_option_function<std::vector<std::string>>(
                   about.flag(),
                   [put](const auto& all) { std::for_each(all.begin(), all.end(), put); },
                   HelpOf(about))
                ->allow_extra_args(false)
          : app.add_option_function<std::string>(about.flag(), put, HelpOf(about));
  option->type_name(TypeOf(field))->check([&field](const std::string& text) {
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING && ToValidUtf8(text) != text) {
      return absl::StrCat(ToValidUtf8(text), " is not UTF-8");
    }
    const std::unique_ptr<Message> scratch(google::protobuf::MessageFactory::generated_factory()
                                               ->GetPrototype(field.containing_type())
                                               ->New());
    return Put(text, field, *scratch) ? std::string()
                                      : absl::StrCat(text, " is not ", TypeOf(field));
  });
}

}  // namespace

void AddGenerationFlags(CLI::App& app, v1::GenerateRequest& request,
                        std::initializer_list<absl::string_view> parts) {
  const auto& options = v1::GenerationOption::descriptor()->file()->options();
  for (const auto& about : options.GetRepeatedExtension(v1::generation_option)) {
    const std::pair<std::string, std::string> path = absl::StrSplit(about.field(), '.');
    if (std::find(parts.begin(), parts.end(), path.first) == parts.end()) continue;
    const FieldDescriptor* const first = request.GetDescriptor()->FindFieldByName(path.first);
    if (path.second.empty()) {
      AddFlag(app, about, request, nullptr, *first);
    } else {
      AddFlag(app, about, request, first, *first->message_type()->FindFieldByName(path.second));
    }
  }
}

}  // namespace aft::client
