#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// The JSON files of vocabularies. They are not trusted: size, form, duplicates and gaps are
// checked. Errors name the path: NOT_FOUND (no such file), INVALID_ARGUMENT, which begins with the
// path, with entry and reason.
namespace aft {

// The most tokens of a vocabulary, which is also config.json's limit.
inline constexpr size_t kMaxVocabularyTokens = size_t{1} << 24;

// Returns the file's bytes. INVALID_ARGUMENT above 64 MiB.
absl::StatusOr<std::string> ReadVocabularyText(const std::string& path);

// Returns tokens, given with their ids in any order, as a list by id. Every id from 0 to the number
// of tokens - 1 must occur once. INVALID_ARGUMENT names the token.
absl::StatusOr<std::vector<std::string>> TokensById(
    std::vector<std::pair<std::string, uint64_t>> tokens);

// Reads ["a", "b", ...]: the tokens in the order of their ids, without duplicates, at least one.
absl::StatusOr<std::vector<std::string>> ReadTokenList(const std::string& path);

// Reads {"token": id, ...} and returns the tokens by id: every id from 0 to their number - 1 once.
absl::StatusOr<std::vector<std::string>> ReadTokenIds(const std::string& path);

// `token` in the form for messages: quoted, escaped where it is not printable, shortened when long.
std::string ShownToken(absl::string_view token);

}  // namespace aft
