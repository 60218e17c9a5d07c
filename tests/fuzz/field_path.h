#pragma once

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"

namespace aft::fuzz {

// Returns whether an error begins with the path of a field (or oneof) of `type` and ": ", such as
// "stop.strings[3]: must ...".
inline bool BeginsWithField(absl::string_view error, const google::protobuf::Descriptor* type) {
  const size_t end = error.find(": ");
  if (end == absl::string_view::npos) return false;
  for (absl::string_view name : absl::StrSplit(error.substr(0, end), '.')) {
    if (type == nullptr) return false;
    const size_t bracket = name.find('[');
    const std::string field_name(name.substr(0, bracket));
    const auto* field = type->FindFieldByName(field_name);
    if (field == nullptr && type->FindOneofByName(field_name) == nullptr) return false;
    if (bracket != absl::string_view::npos && !(field != nullptr && field->is_repeated())) {
      return false;
    }
    type = field == nullptr ? nullptr : field->message_type();
  }
  return true;
}

}  // namespace aft::fuzz
