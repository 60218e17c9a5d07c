#include "model/tokenizer/vocabulary_file.h"

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "nlohmann/json.hpp"

namespace aft {
namespace {

using Json = nlohmann::json;

constexpr std::streamoff kMaxFileBytes = 64 << 20;

// Reads the file event by event. Only values of the one form that it may have are stored, so a
// hostile file costs no more memory than a few times its own length.
class VocabularyReader : public nlohmann::json_sax<Json> {
 public:
  explicit VocabularyReader(bool with_ids) : with_ids_(with_ids) {}

  absl::Status status() const { return status_; }
  std::vector<std::string> TakeTokens() { return std::move(tokens_); }
  const std::vector<uint64_t>& ids() const { return ids_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return Unexpected("a fraction"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (!with_ids_ || !inside_) return Unexpected("a number");
    ids_.push_back(value);
    return true;
  }
  bool string(string_t& value) override {
    if (with_ids_ || !inside_) return Unexpected("a string");
    return AddToken(value);
  }
  bool key(string_t& value) override { return AddToken(value); }

  bool start_object(size_t) override { return Start(with_ids_, "an object"); }
  bool start_array(size_t) override { return Start(!with_ids_, "an array"); }
  bool end_object() override { return true; }
  bool end_array() override { return true; }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    return Fail(absl::StrCat("not valid JSON at byte ", position, ": ", Shown(error.what())));
  }

 private:
  bool Fail(absl::string_view reason) {
    status_ = absl::InvalidArgumentError(reason);
    return false;
  }
  bool Unexpected(absl::string_view what) {
    const char* form = with_ids_ ? "an object of ids" : "an array of strings";
    if (!inside_) return Fail(absl::StrCat("must be ", form, ", not ", what));
    return Fail(absl::StrCat("token ",
                             with_ids_ ? ShownToken(tokens_.back()) : absl::StrCat(tokens_.size()),
                             ": must be ", with_ids_ ? "an id" : "a string", ", not ", what));
  }
  bool Start(bool expected, absl::string_view what) {
    if (inside_ || !expected) return Unexpected(what);
    inside_ = true;
    return true;
  }
  bool AddToken(std::string& token) {
    if (tokens_.size() == kMaxVocabularyTokens) {
      return Fail(absl::StrCat("more than ", kMaxVocabularyTokens, " tokens"));
    }
    if (!seen_.insert(token).second) {
      return Fail(absl::StrCat("token ", ShownToken(token), ": given more than once"));
    }
    tokens_.push_back(std::move(token));
    return true;
  }

  const bool with_ids_;
  bool inside_ = false;
  std::vector<std::string> tokens_;
  std::vector<uint64_t> ids_;
  absl::flat_hash_set<std::string> seen_;
  absl::Status status_;
};

absl::Status FileError(const std::string& path, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", reason));
}

absl::Status ReadJson(const std::string& path, VocabularyReader* reader) {
  AFT_ASSIGN_OR_RETURN(const std::string text, ReadVocabularyText(path));
  // The JSON parser would treat a NUL as the end.
  if (text.find('\0') != std::string::npos) {
    return FileError(path, absl::StrCat("not valid JSON: NUL at byte ", text.find('\0')));
  }
  Json::sax_parse(text.begin(), text.end(), reader);
  return InFile(path, reader->status());
}

}  // namespace

std::string ShownToken(absl::string_view token) { return absl::StrCat("'", Shown(token, 40), "'"); }

absl::StatusOr<std::string> ReadVocabularyText(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
    return FileError(path, "not a regular file");
  }
  errno = EIO;  // in case the library fails without saying why
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file.is_open()) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be opened"));
  }
  const std::streamoff size = file.tellg();
  if (size < 0) return FileError(path, "cannot be read");
  if (size > kMaxFileBytes) {
    return FileError(path, absl::StrCat(size, " bytes; at most ", kMaxFileBytes));
  }
  std::string text(static_cast<size_t>(size), '\0');
  file.seekg(0);
  if (!file.read(text.data(), size)) return FileError(path, "cannot be read");
  return text;
}

absl::StatusOr<std::vector<std::string>> ReadTokenList(const std::string& path) {
  VocabularyReader reader(/*with_ids=*/false);
  AFT_RETURN_IF_ERROR(ReadJson(path, &reader));
  std::vector<std::string> tokens = reader.TakeTokens();
  if (tokens.empty()) return FileError(path, "has no tokens");
  return tokens;
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

absl::StatusOr<std::vector<std::string>> ReadTokenIds(const std::string& path) {
  VocabularyReader reader(/*with_ids=*/true);
  AFT_RETURN_IF_ERROR(ReadJson(path, &reader));
  std::vector<std::string> tokens = reader.TakeTokens();
  if (tokens.empty()) return FileError(path, "has no tokens");
  std::vector<std::pair<std::string, uint64_t>> ids;
  ids.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    ids.emplace_back(std::move(tokens[i]), reader.ids()[i]);
  }
  return InFile(path, TokensById(std::move(ids)));
}

}  // namespace aft
