#include "server/config/fields.h"

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "aft/config/v1/field_options.pb.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "google/protobuf/text_format.h"
#include "server/config/checks.h"

namespace aft::server {
namespace {

namespace pb = aft::config::v1;
using google::protobuf::FieldDescriptor;
using google::protobuf::FieldOptions;
using google::protobuf::Message;
using google::protobuf::TextFormat;

// The number of values of a field. A field that is no list has one value, set or not.
int Values(const Message& message, const FieldDescriptor* field) {
  return field->is_repeated() ? message.GetReflection()->FieldSize(message, field) : 1;
}

const Message& Inner(const Message& message, const FieldDescriptor* field, int i) {
  const auto& fields = *message.GetReflection();
  return field->is_repeated() ? fields.GetRepeatedMessage(message, field, i)
                              : fields.GetMessage(message, field);
}

Message& MutableInner(Message& message, const FieldDescriptor* field, int i) {
  const auto& fields = *message.GetReflection();
  return *(field->is_repeated() ? fields.MutableRepeatedMessage(&message, field, i)
                                : fields.MutableMessage(&message, field));
}

std::string Text(const Message& message, const FieldDescriptor* field, int i) {
  const auto& fields = *message.GetReflection();
  return field->is_repeated() ? fields.GetRepeatedString(message, field, i)
                              : fields.GetString(message, field);
}

template <typename Number>
Number NumberOf(const Message& message, const FieldDescriptor* field, int i) {
  std::string text;
  TextFormat::PrintFieldValueToString(message, field, field->is_repeated() ? i : -1, &text);
  Number number = 0;
  if constexpr (std::is_same_v<Number, double>) {
    AFT_CHECK(absl::SimpleAtod(text, &number));
  } else {
    AFT_CHECK(absl::SimpleAtoi(text, &number));
  }
  return number;
}

template <typename Number>
absl::Status CheckNumber(const std::string& path, const Message& message,
                         const FieldDescriptor* field, int i) {
  const FieldOptions& options = field->options();
  const auto sibling = [&](const std::string& name) {
    return NumberOf<Number>(message, message.GetDescriptor()->FindFieldByName(name), 0);
  };
  auto low = static_cast<Number>(options.GetExtension(pb::min));
  Number high = std::numeric_limits<Number>::max();
  if (options.HasExtension(pb::max)) high = static_cast<Number>(options.GetExtension(pb::max));
  if (options.HasExtension(pb::min_field)) low += sibling(options.GetExtension(pb::min_field));
  if (options.HasExtension(pb::max_field)) high = sibling(options.GetExtension(pb::max_field));
  const auto value = NumberOf<Number>(message, field, i);
  if (value >= low && value <= high) return absl::OkStatus();  // false for NaN
  return BadField(path, absl::StrCat("must be in [", low, ", ", high, "], got ", value));
}

absl::Status CheckText(const std::string& path, const std::string& text,
                       const FieldOptions& options, bool listed) {
  const auto& values = options.GetRepeatedExtension(pb::value);
  if (!values.empty()) AFT_RETURN_IF_ERROR(CheckOneOf(path, text, {values.begin(), values.end()}));
  if (listed && text.empty() && options.GetExtension(pb::required)) {
    return BadField(path, "must be set");
  }
  const double most = options.GetExtension(pb::max);
  if (!options.HasExtension(pb::max) || static_cast<double>(text.size()) <= most) {
    return absl::OkStatus();
  }
  return BadField(path, absl::StrCat("must have at most ", most, " bytes"));
}

// `listed`: the message is an element of a list.
absl::Status CheckMessage(const std::string& path, const Message& message, bool listed);

absl::Status CheckValue(const std::string& path, const Message& message,
                        const FieldDescriptor* field, int i, bool listed) {
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return CheckMessage(path + ".", Inner(message, field, i), field->is_repeated());
    case FieldDescriptor::CPPTYPE_INT32:
      return CheckNumber<int32_t>(path, message, field, i);
    case FieldDescriptor::CPPTYPE_INT64:
      return CheckNumber<int64_t>(path, message, field, i);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return CheckNumber<double>(path, message, field, i);
    case FieldDescriptor::CPPTYPE_STRING:
      return CheckText(path, Text(message, field, i), field->options(), listed);
    default:
      return absl::OkStatus();
  }
}

absl::Status CheckMessage(const std::string& path, const Message& message, bool listed) {
  for (const bool bounded : {false, true}) {
    for (int f = 0; f < message.GetDescriptor()->field_count(); ++f) {
      const FieldDescriptor* field = message.GetDescriptor()->field(f);
      const FieldOptions& options = field->options();
      if (bounded != (options.HasExtension(pb::min_field) || options.HasExtension(pb::max_field))) {
        continue;
      }
      for (int i = 0; i < Values(message, field); ++i) {
        const std::string index = field->is_repeated() ? absl::StrCat("[", i, "]") : "";
        AFT_RETURN_IF_ERROR(
            CheckValue(absl::StrCat(path, field->name(), index), message, field, i, listed));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

void FillDefaults(Message& message) {
  const auto& fields = *message.GetReflection();
  for (int f = 0; f < message.GetDescriptor()->field_count(); ++f) {
    const FieldDescriptor* field = message.GetDescriptor()->field(f);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      for (int i = 0; i < Values(message, field); ++i) {
        FillDefaults(MutableInner(message, field, i));
      }
    } else if (const std::string text = field->options().GetExtension(pb::default_);
               !text.empty() && !fields.HasField(message, field)) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
        fields.SetString(&message, field, text);
      } else {
        AFT_CHECK(TextFormat::Parser().ParseFieldValueFromString(text, field, &message));
      }
    }
  }
}

void ClearDefaults(Message& message) {
  const std::unique_ptr<Message> defaults(message.New());
  FillDefaults(*defaults);
  const auto& fields = *message.GetReflection();
  std::vector<const FieldDescriptor*> there;
  fields.ListFields(message, &there);
  for (const FieldDescriptor* field : there) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      for (int i = 0; i < Values(message, field); ++i) {
        ClearDefaults(MutableInner(message, field, i));
      }
      const bool empty =
          !field->is_repeated() && fields.GetMessage(message, field).ByteSizeLong() == 0;
      if (empty) fields.ClearField(&message, field);
    } else if (!field->is_repeated()) {
      std::string value;
      std::string usual;
      TextFormat::PrintFieldValueToString(message, field, -1, &value);
      TextFormat::PrintFieldValueToString(*defaults, field, -1, &usual);
      if (value == usual) fields.ClearField(&message, field);
    }
  }
}

void ResolveFiles(const std::string& folder, Message& message) {
  const auto& fields = *message.GetReflection();
  std::vector<const FieldDescriptor*> there;
  fields.ListFields(message, &there);
  for (const FieldDescriptor* field : there) {
    const bool file = field->options().GetExtension(pb::file);
    for (int i = 0; i < Values(message, field); ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        ResolveFiles(folder, MutableInner(message, field, i));
      } else if (const std::string path = file ? Text(message, field, i) : ""; !path.empty()) {
        // An absolute path replaces the folder.
        std::string resolved = (std::filesystem::path(folder) / path).string();
        if (field->is_repeated()) {
          fields.SetRepeatedString(&message, field, i, std::move(resolved));
        } else {
          fields.SetString(&message, field, std::move(resolved));
        }
      }
    }
  }
}

absl::Status CheckFields(const Message& message) { return CheckMessage("", message, false); }

}  // namespace aft::server
