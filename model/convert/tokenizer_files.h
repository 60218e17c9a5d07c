#ifndef AFT_MODEL_CONVERT_TOKENIZER_FILES_H_
#define AFT_MODEL_CONVERT_TOKENIZER_FILES_H_

#include <string>

#include "absl/status/status.h"
#include "model/convert/import.h"

namespace aft {

// Sets the import's tokenizer, and its files, for import->config.vocab_size tokens. Errors name the
// file: NOT_FOUND, INVALID_ARGUMENT.

// Characters from a JSON list, one for each token. Without a path: bytes, if there are 256 tokens.
absl::Status UseCharacters(const std::string& chars_path, Import* import);

// vocab.json and merges.txt of `dir`. Without both: bytes, if there are 256 tokens.
absl::Status UseBpe(const std::string& dir, Import* import);

}  // namespace aft

#endif  // AFT_MODEL_CONVERT_TOKENIZER_FILES_H_
