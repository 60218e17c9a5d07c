#include "server/api/openai/logprobs.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/token_bytes.h"

namespace aft::server::openai {
namespace {

absl::string_view BytesOfToken(const Tokenizer& tokenizer, uint32_t id) {
  return TokenBytes(tokenizer, static_cast<TokenId>(id));
}

OrderedJson ListOf(absl::string_view bytes) {
  OrderedJson list = OrderedJson::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return list;
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

OrderedJson ChatEntry(const Tokenizer& tokenizer, uint32_t id, float logprob) {
  const absl::string_view bytes = BytesOfToken(tokenizer, id);
  return {{"token", ToValidUtf8(bytes)}, {"logprob", logprob}, {"bytes", ListOf(bytes)}};
}

// Whether the byte of UTF-8 continues a character.
bool Continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

size_t Characters(absl::string_view text) {
  return text.size() - static_cast<size_t>(std::count_if(text.begin(), text.end(), Continues));
}

}  // namespace

OrderedJson ChatLogprobs(const Tokenizer& tokenizer, const TokenIdList& ids,
                         const LogprobList& logprobs) {
  OrderedJson content = OrderedJson::array();
  for (int i = 0; i < ids.size(); ++i) {
    OrderedJson top = OrderedJson::array();
    for (const v1::Alternative& other : logprobs[i].top()) {
      top.push_back(ChatEntry(tokenizer, other.token_id(), other.logprob()));
    }
    content.push_back(ChatEntry(tokenizer, ids[i], logprobs[i].logprob()));
    content.back()["top_logprobs"] = std::move(top);
  }
  return {{"content", std::move(content)}};
}

void CompletionLogprobs::Add(const Tokenizer& tokenizer, uint32_t id,
                             const v1::TokenLogprobs* logprob) {
  const absl::string_view bytes = BytesOfToken(tokenizer, id);
  // A byte that does not continue an incomplete character makes it a character: U+FFFD.
  if (!bytes.empty() && !utf8_.Takes(bytes.front())) EndCharacter();
  offsets_.push_back(characters_);
  Read(bytes);
  std::string name = NameOf(tokenizer, id);
  OrderedJson top = nullptr;
  if (logprob != nullptr) {
    top = OrderedJson::object();
    // If several tokens have the same bytes, the first and most likely one keeps the name.
    for (const v1::Alternative& other : logprob->top()) {
      top.emplace(NameOf(tokenizer, other.token_id()), other.logprob());
    }
    top.emplace(name, logprob->logprob());
  }
  tokens_.push_back(std::move(name));
  logprobs_.push_back(logprob != nullptr ? OrderedJson(logprob->logprob()) : nullptr);
  tops_.push_back(std::move(top));
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

OrderedJson CompletionLogprobs::Take() {
  const auto take = [](OrderedJson& list) { return std::exchange(list, OrderedJson::array()); };
  return {{"tokens", take(tokens_)},
          {"token_logprobs", take(logprobs_)},
          {"top_logprobs", take(tops_)},
          {"text_offset", take(offsets_)}};
}

}  // namespace aft::server::openai
