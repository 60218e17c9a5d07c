#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"
#include "base/utf8.h"
#include "model/api/tokenizer.h"

// Log-probabilities of tokens in OpenAI's two forms. They are written as text: a value of JSON for
// each of them would take several times the memory.
namespace aft::server::openai {

using TokenIdList = google::protobuf::RepeatedField<uint32_t>;
using LogprobList = google::protobuf::RepeatedPtrField<v1::TokenLogprobs>;

// Appends the form of chat: an object for each token.
void AppendChatLogprobs(const Tokenizer& tokenizer, const TokenIdList& ids,
                        const LogprobList& logprobs, std::string& json);

// The form of completions: parallel lists, one of them with the place of each token in the text.
// There is one object for the text of a choice, which may come in several parts. A token that is a
// part of a character has the name `bytes:\xe2`. Thread-compatible.
class CompletionLogprobs {
 public:
  // Adds the next token. `logprobs` is null if its log-probability is not known.
  void Add(const Tokenizer& tokenizer, uint32_t id, const v1::TokenLogprobs* logprob);
  // Must be called after the last token of the prompt, because the answer does not complete a
  // character of the prompt.
  void EndPrompt() { EndCharacter(); }
  bool empty() const { return tokens_.empty(); }
  // Appends the object for the tokens that were added since the last call.
  void Take(std::string& json);

 private:
  void Read(absl::string_view bytes);
  void EndCharacter();

  // Lists without their brackets.
  std::string tokens_;
  std::string logprobs_;
  std::string tops_;
  std::string offsets_;
  Utf8Stream utf8_;
  size_t characters_ = 0;  // of the text so far, without an incomplete one at its end
};

}  // namespace aft::server::openai
