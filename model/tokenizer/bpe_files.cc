#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/in_file.h"
#include "base/json_walk.h"
#include "base/status_macros.h"
#include "model/tokenizer/bpe_builder.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/vocabulary_file.h"
#include "nlohmann/json.hpp"

namespace aft {

absl::Status AddMergeLine(absl::string_view line, BpeBuilder* builder) {
  const size_t space = line.find(' ');
  if (space == 0 || space == absl::string_view::npos || space + 1 == line.size() ||
      line.find(' ', space + 1) != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("must be two tokens with a space between, got ", ShownToken(line)));
  }
  return builder->AddMerge(line.substr(0, space), line.substr(space + 1));
}

namespace {

absl::Status ReadMerges(const std::string& path, BpeBuilder* builder) {
  AFT_ASSIGN_OR_RETURN(const std::string text, ReadVocabularyText(path));
  absl::string_view rest = text;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const absl::string_view line = absl::StripSuffix(rest.substr(0, end), "\r");
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (number == 1 && line.substr(0, 8) == "#version") continue;
    AFT_RETURN_IF_ERROR(InFile(absl::StrCat(path, ":", number), AddMergeLine(line, builder)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::optional<EndOfText>> ReadEndOfText(const std::string& config_path) {
  using Json = nlohmann::json;
  std::error_code error;
  std::optional<EndOfText> eos;
  if (!std::filesystem::exists(config_path, error)) return eos;
  AFT_ASSIGN_OR_RETURN(const std::string text, ReadVocabularyText(config_path));
  const auto refuse = [](absl::string_view problem) {
    return absl::InvalidArgumentError(absl::StrCat("eos_token: ", problem));
  };
  bool object = false;
  const auto take = [&](const JsonPath& at, const Json& value) -> absl::Status {
    if (at.empty() || at[0] != "eos_token") return absl::OkStatus();
    if (at.size() == 1 && value.is_object()) object = true;
    if (at.size() == 1 ? value.is_object() || value.is_null() : !object || at[1] != "content") {
      return absl::OkStatus();
    }
    if (!value.is_string()) {
      return refuse(absl::StrCat("must be a token, got ", ShownJson(value)));
    }
    if (eos.has_value()) return refuse("given more than once");
    eos = EndOfText{value.get<std::string>(), absl::StrCat(config_path, ": eos_token")};
    return absl::OkStatus();
  };
  AFT_RETURN_IF_ERROR(InFile(config_path, WalkJson(text, take)));
  return eos;
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadBpeTokenizer(
    const std::string& vocab_path, const std::string& merges_path,
    const std::optional<EndOfText>& eos) {
  AFT_ASSIGN_OR_RETURN(std::vector<std::string> tokens, ReadTokenIds(vocab_path));
  AFT_ASSIGN_OR_RETURN(BpeBuilder builder,
                       InFile(vocab_path, BpeBuilder::Create(std::move(tokens))));
  AddedToken end = {.id = builder.Find(kEndOfText), .content = kEndOfText, .special = true};
  if (eos.has_value()) {
    AFT_ASSIGN_OR_RETURN(end.id, InFile(vocab_path, builder.FindEndOfText(*eos)));
    end.content = eos->token;
    end.named_by = eos->named_by;
  }
  const int32_t eos_id = end.id;
  if (eos_id >= 0) AFT_RETURN_IF_ERROR(InFile(vocab_path, builder.Add(std::move(end))));
  AFT_RETURN_IF_ERROR(ReadMerges(merges_path, &builder));
  return InFile(vocab_path, std::move(builder).Build(eos_id));
}

}  // namespace aft
