#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"
#include "base/utf8.h"
#include "model/api/tokenizer.h"
#include "server/api/openai/json_text.h"

// Log-probabilities of tokens in OpenAI's two forms.
namespace aft::server::openai {

using TokenIdList = google::protobuf::RepeatedField<uint32_t>;
using LogprobList = google::protobuf::RepeatedPtrField<v1::TokenLogprobs>;

// The form of chat: an object for each token.
OrderedJson ChatLogprobs(const Tokenizer& tokenizer, const TokenIdList& ids,
                         const LogprobList& logprobs);

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
  // Returns the object for the tokens that were added since the last call.
  OrderedJson Take();

 private:
  void Read(absl::string_view bytes);
  void EndCharacter();

  OrderedJson tokens_ = OrderedJson::array();
  OrderedJson logprobs_ = OrderedJson::array();
  OrderedJson tops_ = OrderedJson::array();
  OrderedJson offsets_ = OrderedJson::array();
  Utf8Stream utf8_;
  size_t characters_ = 0;  // of the text so far, without an incomplete one at its end
};

}  // namespace aft::server::openai
