#include "server/api/openai/logprobs.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "server/api/openai/json_text.h"
#include "server/engine/token_bytes.h"

namespace aft::server::openai {
namespace {

absl::string_view BytesOfToken(const Tokenizer& tokenizer, uint32_t id) {
  return TokenBytes(tokenizer, static_cast<TokenId>(id));
}

// Appends the comma in front of an entry that is not the first one of its list.
void Separate(bool first, std::string& json) {
  if (!first) json += ',';
}

// Completions have no field for bytes, so a part of a character is written as OpenAI does.
std::string NameOf(const Tokenizer& tokenizer, uint32_t id) {
  const absl::string_view bytes = BytesOfToken(tokenizer, id);
  std::string name = ToValidUtf8(bytes);
  if (name == bytes) return name;
  name = "bytes:";
  for (const char c : bytes) {
    absl::StrAppend(&name, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
  }
  return name;
}

// Appends an object without its last brace.
void OpenChatEntry(const Tokenizer& tokenizer, uint32_t id, float logprob, std::string& json) {
  const absl::string_view bytes = BytesOfToken(tokenizer, id);
  absl::StrAppend(&json, "{\"token\":", Quoted(ToValidUtf8(bytes)), ",\"logprob\":");
  AppendNumber(double{logprob}, json);
  json += ",\"bytes\":[";
  for (size_t i = 0; i < bytes.size(); ++i) {
    Separate(i == 0, json);
    absl::StrAppend(&json, int{static_cast<unsigned char>(bytes[i])});
  }
  json += ']';
}

size_t Characters(absl::string_view text) {
  return text.size() - static_cast<size_t>(std::count_if(text.begin(), text.end(), ContinuesUtf8));
}

}  // namespace

void AppendChatLogprobs(const Tokenizer& tokenizer, const TokenIdList& ids,
                        const LogprobList& logprobs, std::string& json) {
  json += "{\"content\":[";
  for (int i = 0; i < ids.size(); ++i) {
    Separate(i == 0, json);
    OpenChatEntry(tokenizer, ids[i], logprobs[i].logprob(), json);
    json += ",\"top_logprobs\":[";
    for (int j = 0; j < logprobs[i].top_size(); ++j) {
      Separate(j == 0, json);
      OpenChatEntry(tokenizer, logprobs[i].top(j).token_id(), logprobs[i].top(j).logprob(), json);
      json += '}';
    }
    json += "]}";
  }
  json += "]}";
}

void CompletionLogprobs::Add(const Tokenizer& tokenizer, uint32_t id,
                             const v1::TokenLogprobs* logprob) {
  const absl::string_view bytes = BytesOfToken(tokenizer, id);
  // A byte that does not continue an incomplete character makes it a character: U+FFFD.
  if (!bytes.empty() && !utf8_.Takes(bytes.front())) EndCharacter();
  for (std::string* const list : {&tokens_, &logprobs_, &tops_, &offsets_}) {
    Separate(list->empty(), *list);
  }
  absl::StrAppend(&offsets_, characters_);
  Read(bytes);
  std::string name = NameOf(tokenizer, id);
  tokens_ += Quoted(name);
  if (logprob == nullptr) {
    logprobs_ += "null";
    tops_ += "null";
    return;
  }
  AppendNumber(double{logprob->logprob()}, logprobs_);
  // If several tokens have the same bytes, the first and most likely one keeps the name.
  std::vector<std::string> names;
  const auto add = [&](std::string other, float value) {
    if (std::find(names.begin(), names.end(), other) != names.end()) return;
    Separate(names.empty(), tops_);
    absl::StrAppend(&tops_, Quoted(other), ":");
    AppendNumber(double{value}, tops_);
    names.push_back(std::move(other));
  };
  tops_ += '{';
  for (const v1::Alternative& other : logprob->top()) {
    add(NameOf(tokenizer, other.token_id()), other.logprob());
  }
  add(std::move(name), logprob->logprob());
  tops_ += '}';
}

void CompletionLogprobs::Read(absl::string_view bytes) {
  std::string text;
  utf8_.Append(bytes, text);
  characters_ += Characters(text);
}

void CompletionLogprobs::EndCharacter() {
  std::string text;
  utf8_.Flush(text);
  characters_ += Characters(text);
}

void CompletionLogprobs::Take(std::string& json) {
  const auto take = [&json](const char* name, std::string& list) {
    absl::StrAppend(&json, name, std::exchange(list, std::string()));
  };
  take("{\"tokens\":[", tokens_);
  take("],\"token_logprobs\":[", logprobs_);
  take("],\"top_logprobs\":[", tops_);
  take("],\"text_offset\":[", offsets_);
  json += "]}";
}

}  // namespace aft::server::openai
