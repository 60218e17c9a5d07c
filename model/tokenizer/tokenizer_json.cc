#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/in_file.h"
#include "base/json_walk.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "model/tokenizer/bpe_builder.h"
#include "model/tokenizer/nfc.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/vocabulary_file.h"

namespace aft {
namespace {

using Json = nlohmann::json;

absl::Status FieldError(absl::string_view field, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(Shown(field), ": ", problem));
}

// All values except the vocabulary and the merges, by their path, such as "model.type". The values
// of objects and arrays are {} and [].
using Fields = std::map<std::string, Json>;
constexpr size_t kMaxFields = size_t{1} << 17;  // an added token has seven
// A key is repeated in the path of each field below it, so one long key could fill the memory.
constexpr size_t kMaxPathBytes = 1024;

const Json& At(const Fields& fields, const std::string& field) {
  static const Json absent;
  const auto found = fields.find(field);
  return found == fields.end() ? absent : found->second;
}

// The values that a field may have, with null if it may be left out. An empty list allows any
// value, because the field makes no difference here. (Every byte of UTF-8 is a token, so no
// text is unknown.)
struct Rule {
  const char* field;
  std::vector<Json> allowed;
};
const std::vector<Rule>& Rules() {
  static const auto* const rules = new std::vector<Rule>{
      {"version", {nullptr, "1.0"}},
      {"normalizer", {nullptr, Json::object()}},
      {"normalizer.type", {nullptr, "NFC"}},
      {"pre_tokenizer", {Json::object()}},
      {"pre_tokenizer.type", {"ByteLevel"}},
      {"pre_tokenizer.add_prefix_space", {false}},
      {"pre_tokenizer.use_regex", {nullptr, true}},
      {"pre_tokenizer.trim_offsets", {}},
      {"post_processor", {nullptr, Json::object()}},
      {"post_processor.type", {nullptr, "ByteLevel", "TemplateProcessing"}},
      {"decoder", {Json::object()}},
      {"decoder.type", {"ByteLevel"}},
      {"model", {Json::object()}},
      {"model.type", {nullptr, "BPE"}},
      {"model.dropout", {nullptr, 0}},
      {"model.unk_token", {}},
      {"model.fuse_unk", {}},
      {"model.byte_fallback", {}},
      {"model.continuing_subword_prefix", {nullptr, ""}},
      {"model.end_of_word_suffix", {nullptr, ""}},
      {"model.ignore_merges", {nullptr, false}},
      {"model.vocab", {Json::object()}},
      {"model.merges", {Json::array()}},
  };
  return *rules;
}

absl::Status CheckRules(const Fields& fields) {
  for (const Rule& rule : Rules()) {
    const Json& value = At(fields, rule.field);
    if (rule.allowed.empty() || absl::c_linear_search(rule.allowed, value)) continue;
    const std::string allowed = absl::StrJoin(
        rule.allowed, " or ",
        [](std::string* out, const Json& one) { absl::StrAppend(out, ShownJson(one)); });
    return FieldError(rule.field, absl::StrCat("must be ", allowed, ", got ", ShownJson(value)));
  }
  // A template may consist of the text alone.
  for (const auto& [field, value] : fields) {
    if (absl::StartsWith(field, "post_processor.single.") &&
        absl::EndsWith(field, ".SpecialToken")) {
      return FieldError(field, "a token that is added to every text is not supported");
    }
  }
  // Refuses fields of later versions of the format, because they may change the tokens of a text.
  for (const auto& [field, value] : fields) {
    if (!absl::StartsWith(field, "model.") && !absl::StartsWith(field, "pre_tokenizer.") &&
        !absl::StartsWith(field, "normalizer.")) {
      continue;
    }
    if (absl::c_none_of(Rules(), [&f = field](const Rule& rule) { return f == rule.field; })) {
      return FieldError(field, "is not known");
    }
  }
  return absl::OkStatus();
}

struct TokenizerJson {
  Fields fields;
  std::vector<std::pair<std::string, uint64_t>> vocabulary;
  std::vector<std::vector<std::string>> merges;  // one string "left right", or two strings

  absl::Status Take(const JsonPath& path, const Json& value);
  absl::Status TakeMerge(const JsonPath& path, const Json& value);
};

absl::Status TokenizerJson::TakeMerge(const JsonPath& path, const Json& value) {
  if (path.size() == 3) {
    if (!value.is_string() && !value.is_array()) {
      return FieldError(
          absl::StrJoin(path, "."),
          absl::StrCat("must be a string or an array of two strings, got ", ShownJson(value)));
    }
    if (merges.size() == kMaxVocabularyTokens) {
      return FieldError("model.merges", absl::StrCat("more than ", kMaxVocabularyTokens));
    }
    merges.emplace_back();
  }
  if (value.is_array() && path.size() == 3) return absl::OkStatus();
  if (!value.is_string() || merges.back().size() == 2) {
    return FieldError(absl::StrJoin(path, "."),
                      "a merge must be a string or an array of two strings");
  }
  merges.back().push_back(value.get<std::string>());
  return absl::OkStatus();
}

absl::Status TokenizerJson::Take(const JsonPath& path, const Json& value) {
  const bool model = path.size() > 2 && path[0] == "model";
  if (model && path[1] == "merges") return TakeMerge(path, value);
  if (model && path[1] == "vocab") {
    if (path.size() > 3 || !value.is_number_unsigned()) {
      return FieldError("model.vocab", absl::StrCat("token ", ShownToken(path[2]),
                                                    ": must be an id, got ", ShownJson(value)));
    }
    if (vocabulary.size() == kMaxVocabularyTokens) {
      return FieldError("model.vocab", absl::StrCat("more than ", kMaxVocabularyTokens, " tokens"));
    }
    vocabulary.emplace_back(path[2], value.get<uint64_t>());
    return absl::OkStatus();
  }
  if (path.empty()) {
    return value.is_object() ? absl::OkStatus()
                             : absl::InvalidArgumentError(
                                   absl::StrCat("must be an object, got ", ShownJson(value)));
  }
  size_t bytes = path.size();
  for (const std::string& key : path) bytes += key.size();
  if (bytes > kMaxPathBytes) {
    return FieldError(path[0],
                      absl::StrCat("has a key or a path of more than ", kMaxPathBytes, " bytes"));
  }
  const std::string field = absl::StrJoin(path, ".");
  if (!fields.emplace(field, value).second) return FieldError(field, "given more than once");
  if (fields.size() > kMaxFields) {
    return absl::InvalidArgumentError(
        absl::StrCat("more than ", kMaxFields, " fields in addition to vocabulary and merges"));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Flag(const Fields& fields, const std::string& field) {
  const Json& value = At(fields, field);
  if (value.is_boolean()) return value.get<bool>();
  return FieldError(field, absl::StrCat("must be true or false, got ", ShownJson(value)));
}

absl::StatusOr<std::vector<AddedToken>> AddedTokensOf(const Fields& fields) {
  std::vector<AddedToken> added;
  const Json& list = At(fields, "added_tokens");
  if (!list.is_null() && !list.is_array()) {
    return FieldError("added_tokens", absl::StrCat("must be an array, got ", ShownJson(list)));
  }
  for (size_t i = 0; fields.count(absl::StrCat("added_tokens.", i)) > 0; ++i) {
    const std::string prefix = absl::StrCat("added_tokens.", i, ".");
    const Json& id = At(fields, prefix + "id");
    const Json& content = At(fields, prefix + "content");
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMaxVocabularyTokens) {
      return FieldError(prefix + "id", absl::StrCat("must be an id, got ", ShownJson(id)));
    }
    if (!content.is_string()) {
      return FieldError(prefix + "content",
                        absl::StrCat("must be a string, got ", ShownJson(content)));
    }
    AddedToken token = {.id = id.get<int32_t>(), .content = content.get<std::string>()};
    AFT_ASSIGN_OR_RETURN(token.special, Flag(fields, prefix + "special"));
    AFT_ASSIGN_OR_RETURN(const bool normalized, Flag(fields, prefix + "normalized"));
    token.before_others = !normalized;
    for (const char* search : {"lstrip", "rstrip", "single_word"}) {
      AFT_ASSIGN_OR_RETURN(const bool value, Flag(fields, prefix + search));
      if (value && !token.special) {
        return FieldError(prefix + search, "must be false, unless the token is special");
      }
    }
    added.push_back(std::move(token));
  }
  return added;
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Build(TokenizerJson json,
                                                       const std::optional<EndOfText>& eos) {
  AFT_RETURN_IF_ERROR(CheckRules(json.fields));
  AFT_ASSIGN_OR_RETURN(std::vector<AddedToken> added, AddedTokensOf(json.fields));
  const bool nfc = At(json.fields, "normalizer.type").is_string();
  for (const AddedToken& token : added) {
    if (!nfc || token.special) continue;
    // Such tokens would be looked for in a text as it is, or in a form that they do not have.
    if (token.before_others || ToNfc(token.content) != token.content) {
      return FieldError("added_tokens", absl::StrCat("token ", ShownToken(token.content),
                                                     ": must be normalized, in form NFC"));
    }
  }
  std::map<std::string, uint64_t> ids(json.vocabulary.begin(), json.vocabulary.end());
  for (const AddedToken& token : added) {
    const auto [known, is_new] = ids.emplace(token.content, token.id);
    if (is_new) {
      json.vocabulary.emplace_back(token.content, token.id);
    } else if (known->second != static_cast<uint64_t>(token.id)) {
      return FieldError("added_tokens",
                        absl::StrCat("token ", ShownToken(token.content), ": id ", token.id,
                                     ", but ", known->second, " in the vocabulary"));
    }
  }
  AFT_ASSIGN_OR_RETURN(std::vector<std::string> tokens,
                       InFile("model.vocab", TokensById(std::move(json.vocabulary))));
  AFT_ASSIGN_OR_RETURN(BpeBuilder builder,
                       InFile("model.vocab", BpeBuilder::Create(std::move(tokens))));
  int32_t eos_id = -1;
  if (eos.has_value()) {
    AFT_ASSIGN_OR_RETURN(eos_id, builder.FindEndOfText(*eos));
    const auto same = absl::c_find_if(added, [&](const auto& one) { return one.id == eos_id; });
    added.push_back({.id = eos_id,
                     .content = eos->token,
                     .special = true,
                     .before_others = same == added.end() || same->before_others,
                     .named_by = eos->named_by});
  }
  for (AddedToken& token : added) {
    if (!eos.has_value() && token.special && token.content == kEndOfText) eos_id = token.id;
    AFT_RETURN_IF_ERROR(InFile("added_tokens", builder.Add(std::move(token))));
  }
  for (size_t i = 0; i < json.merges.size(); ++i) {
    const std::vector<std::string>& merge = json.merges[i];
    const absl::Status status = merge.size() == 2   ? builder.AddMerge(merge[0], merge[1])
                                : merge.size() == 1 ? AddMergeLine(merge[0], &builder)
                                                    : absl::InvalidArgumentError("is empty");
    AFT_RETURN_IF_ERROR(InFile(absl::StrCat("model.merges.", i), status));
  }
  return InFile("model.vocab", std::move(builder).Build(eos_id, nfc));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadTokenizerJson(const std::string& path,
                                                                   const std::string& config_path) {
  AFT_ASSIGN_OR_RETURN(const std::string text, ReadVocabularyText(path));
  AFT_ASSIGN_OR_RETURN(const std::optional<EndOfText> eos, ReadEndOfText(config_path));
  return MakeJsonTokenizer(text, path, eos);
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> MakeJsonTokenizer(
    absl::string_view text, const std::string& path, const std::optional<EndOfText>& eos) {
  TokenizerJson json;
  AFT_RETURN_IF_ERROR(InFile(path, WalkJson(text, [&json](const JsonPath& at, const Json& value) {
                               return json.Take(at, value);
                             })));
  return InFile(path, Build(std::move(json), eos));
}

}  // namespace aft
