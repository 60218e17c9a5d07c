#include "server/config/checks.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/utf8.h"

namespace aft::server {

absl::Status BadField(absl::string_view path, absl::string_view reason) {
  // A client may have made up the path. No path of our own is that long; some have quotes.
  constexpr size_t kLongest = 200;
  return absl::InvalidArgumentError(absl::StrCat(
      path.size() > kLongest ? Shown(path, kLongest) : std::string(path), ": ", reason));
}

absl::Status WithPath(const absl::Status& error, absl::string_view from, absl::string_view to) {
  absl::string_view rest = error.message();
  if (!absl::ConsumePrefix(&rest, from) || rest.empty()) return error;
  if (!absl::StrContains(":.[", rest.front())) return error;  // another path that begins like it
  return absl::Status(error.code(), absl::StrCat(to, rest));
}

absl::Status CheckOneOf(absl::string_view path, const std::string& value,
                        const std::vector<absl::string_view>& allowed) {
  for (absl::string_view candidate : allowed) {
    if (value == candidate) return absl::OkStatus();
  }
  return BadField(path, absl::StrCat("must be one of \"", absl::StrJoin(allowed, "\", \""),
                                     "\", got \"", Shown(value), "\""));
}

absl::Status CheckLength(absl::string_view path, size_t bytes, size_t most) {
  if (bytes <= most) return absl::OkStatus();
  return BadField(path, absl::StrCat("must have at most ", most, " bytes, got ", bytes));
}

absl::Status CheckName(absl::string_view path, absl::string_view name) {
  // As a part of a path, "." and ".." would lead to other folders.
  bool ok = !name.empty() && name.size() <= 128 && name != "." && name != "..";
  for (char c : name) {
    ok = ok &&
         (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-');
  }
  if (ok) return absl::OkStatus();
  const std::string got =
      name.size() <= 128 ? absl::StrCat("\"", name, "\"") : absl::StrCat(name.size(), " bytes");
  return BadField(path, absl::StrCat("must be 1 to 128 letters, digits, '.', '_' or '-', and not "
                                     "\".\" or \"..\", got ",
                                     got));
}

}  // namespace aft::server
