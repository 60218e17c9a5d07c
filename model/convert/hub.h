#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/config/config.h"
#include "model/convert/import.h"
#include "nlohmann/json.hpp"

// Folders as Hugging Face's hub has them. Their config.json has many keys that do not matter here,
// and more with every version: what is read is checked, the rest is left alone. Errors:
// INVALID_ARGUMENT names the key.
namespace aft {

// The JSON in a file. Errors name it: ReadVocabularyText's, and INVALID_ARGUMENT.
absl::StatusOr<nlohmann::json> ReadHubJson(const std::string& path);

absl::Status ReadSize(const nlohmann::json& json, const char* key, int64_t* out);
absl::Status ReadString(const nlohmann::json& json, const char* key, std::string* out);
absl::Status ReadNorm(const nlohmann::json& json, const char* key, float* out);
// Stays as it is where the key is absent.
absl::Status ReadFlag(const nlohmann::json& json, const char* key, bool* out);
// A flag that changes what the network computes in a way that is not supported.
absl::Status CheckFlag(const nlohmann::json& json, const char* key, bool supported);
absl::Status ReadActivation(const nlohmann::json& json, const char* key, Activation* out);

// The causal mixer of a model whose attention has `heads` heads.
MixerConfig HubAttention(const AttentionOptions& options, int64_t heads);

// Takes the byte-level BPE's files that `dir` has, and says in the config what they make. `config`
// is the folder's config.json. An encoder's texts get the tokens around them that the
// tokenizer.json says, or without one those of its bos_token_id and eos_token_id.
absl::Status UseHubTokenizer(const std::string& dir, const nlohmann::json& config, Import* import);

// How a folder of sentence-transformers (modules.json, 1_Pooling/config.json) makes one vector of a
// text; other folders leave `config` as it is. Errors name the file.
absl::Status UseSentencePooling(const std::string& dir, NetworkConfig* config);

}  // namespace aft
