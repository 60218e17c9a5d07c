#ifndef AFT_MODEL_TOKENIZER_CHAR_TOKENIZER_H_
#define AFT_MODEL_TOKENIZER_CHAR_TOKENIZER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/api/tokenizer.h"

namespace aft {

// The entry of a character vocabulary that stands for every other character. It has no bytes of its
// own: decoding drops it.
inline constexpr char kUnknownCharacter[] = "<unk>";

// One token per Unicode character (code point): id = its place in `characters`, each one character
// in UTF-8, or kUnknownCharacter once. Without that, Encode refuses a text with any other
// character, and every text that it accepts round-trips exactly. No end-of-text token.
// INVALID_ARGUMENT names the entry.
absl::StatusOr<std::shared_ptr<const Tokenizer>> MakeCharTokenizer(
    std::vector<std::string> characters);

}  // namespace aft

#endif  // AFT_MODEL_TOKENIZER_CHAR_TOKENIZER_H_
