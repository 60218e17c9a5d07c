#include "model/tokenizer/vocabulary_file.h"

#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/in_file.h"
#include "base/json_walk.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "nlohmann/json.hpp"

namespace aft {
namespace {

using Json = nlohmann::json;

absl::Status TokenError(absl::string_view token, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat("token ", token, ": ", reason));
}

// Reads {"token": id, ...} or, without ids, ["token", ...]. Only values of the one form that the
// file may have are stored, so a hostile file costs no more memory than a few times its own length.
absl::StatusOr<std::vector<std::string>> ReadTokens(const std::string& path, bool with_ids) {
  AFT_ASSIGN_OR_RETURN(const std::string text, ReadVocabularyText(path));
  std::vector<std::pair<std::string, uint64_t>> tokens;
  absl::flat_hash_set<std::string> seen;
  const auto take = [&](const JsonPath& at, const Json& value) -> absl::Status {
    if (at.empty()) {
      if (with_ids ? value.is_object() : value.is_array()) return absl::OkStatus();
      const char* form = with_ids ? "an object of ids" : "an array of strings";
      return absl::InvalidArgumentError(absl::StrCat("must be ", form, ", got ", ShownJson(value)));
    }
    if (with_ids && !value.is_number_unsigned()) {
      return TokenError(ShownToken(at[0]), absl::StrCat("must be an id, got ", ShownJson(value)));
    }
    if (!with_ids && !value.is_string()) {
      return TokenError(at[0], absl::StrCat("must be a string, got ", ShownJson(value)));
    }
    if (tokens.size() == kMaxVocabularyTokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("more than ", kMaxVocabularyTokens, " tokens"));
    }
    const std::string& token = with_ids ? at[0] : value.get_ref<const std::string&>();
    if (!seen.insert(token).second) return TokenError(ShownToken(token), "given more than once");
    tokens.emplace_back(token, with_ids ? value.get<uint64_t>() : tokens.size());
    return absl::OkStatus();
  };
  AFT_RETURN_IF_ERROR(InFile(path, WalkJson(text, take)));
  if (tokens.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": has no tokens"));
  return InFile(path, TokensById(std::move(tokens)));
}

}  // namespace

std::string ShownToken(absl::string_view token) { return absl::StrCat("'", Shown(token, 40), "'"); }

absl::StatusOr<std::string> ReadVocabularyText(const std::string& path) {
  constexpr size_t kMaxFileBytes = size_t{64} << 20;
  return ReadRegularFile(path, kMaxFileBytes);
}

absl::StatusOr<std::vector<std::string>> TokensById(
    std::vector<std::pair<std::string, uint64_t>> tokens) {
  std::vector<std::string> by_id(tokens.size());
  std::vector<bool> taken(tokens.size());
  for (auto& [token, id] : tokens) {
    if (id >= tokens.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", ShownToken(token), ": id ", id, " is not below ", tokens.size(),
                       ", the number of tokens: ids must have no gaps"));
    }
    const auto slot = static_cast<size_t>(id);
    if (taken[slot]) {
      return absl::InvalidArgumentError(absl::StrCat("token ", ShownToken(token), ": id ", id,
                                                     " is also that of ", ShownToken(by_id[slot])));
    }
    taken[slot] = true;
    by_id[slot] = std::move(token);
  }
  return by_id;
}

absl::StatusOr<std::vector<std::string>> ReadTokenList(const std::string& path) {
  return ReadTokens(path, /*with_ids=*/false);
}

absl::StatusOr<std::vector<std::string>> ReadTokenIds(const std::string& path) {
  return ReadTokens(path, /*with_ids=*/true);
}

}  // namespace aft
