#include "server/api/oip/source.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/config/checks.h"

namespace aft::server::oip {

const InputTensor* Source::Find(absl::string_view name) const {
  const auto found = std::find_if(inputs.begin(), inputs.end(),
                                  [name](const InputTensor& input) { return input.name == name; });
  return found == inputs.end() ? nullptr : &*found;
}

absl::StatusOr<bool> Source::Flag(absl::string_view name, bool unset) const {
  const InputTensor* const tensor = Find(name);
  return tensor == nullptr ? absl::StatusOr<bool>(unset) : ReadBool(*tensor);
}

absl::StatusOr<const InputTensor*> Source::FindOneOf(absl::Span<const char* const> names) const {
  const InputTensor* found = nullptr;
  int count = 0;
  for (const char* const name : names) {
    const InputTensor* const tensor = Find(name);
    if (tensor == nullptr) continue;
    found = tensor;
    ++count;
  }
  if (count == 1) return found;
  if (names.size() == 1) return BadField(names.front(), "must be given");
  return BadField(names.front(), absl::StrCat("exactly one of ", absl::StrJoin(names, ", "),
                                              " must be given, got ", count));
}

std::string ParameterPath(absl::string_view name) { return absl::StrCat(kParameters, ".", name); }

absl::StatusOr<bool> ReadFlag(absl::string_view name, const inference::InferParameter& parameter) {
  if (parameter.has_bool_param()) return parameter.bool_param();
  return BadField(ParameterPath(name), "must be a boolean");
}

absl::Status AddIds(absl::Span<const int64_t> ids, absl::string_view path, int64_t vocab_size,
                    v1::TokenIds& tokens) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return BadField(
          absl::StrCat(path, "[", i, "]"),
          absl::StrCat("must be in [0, ", vocab_size, "), the vocabulary, got ", ids[i]));
    }
    tokens.add_ids(static_cast<uint32_t>(ids[i]));
  }
  return absl::OkStatus();
}

absl::Status RenameText(const absl::Status& error, absl::string_view text, absl::string_view ids) {
  return WithPath(WithPath(error, "raw", text), "tokens.ids", ids);
}

}  // namespace aft::server::oip
