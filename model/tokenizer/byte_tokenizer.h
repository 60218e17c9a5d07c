#ifndef AFT_MODEL_TOKENIZER_BYTE_TOKENIZER_H_
#define AFT_MODEL_TOKENIZER_BYTE_TOKENIZER_H_

#include <memory>

#include "model/api/tokenizer.h"

namespace aft {

// One token per byte: vocabulary 256, id = the byte's value, so every text round-trips exactly.
// There is no end-of-text token (eos_id() is -1): sequences of a byte-level model end by their
// limits or by stop strings.
std::shared_ptr<const Tokenizer> MakeByteTokenizer();

}  // namespace aft

#endif  // AFT_MODEL_TOKENIZER_BYTE_TOKENIZER_H_
