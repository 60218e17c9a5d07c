#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/config/config.h"
#include "model/convert/import.h"
#include "nlohmann/json.hpp"

// Functions for folders of Hugging Face's hub. Their config.json has many keys that do not matter
// here, and more with every version. So keys that are read are checked, and all others are ignored.
// Errors: INVALID_ARGUMENT names the key.
namespace aft {

// The JSON in a file. Errors name the file: those of ReadVocabularyText, and INVALID_ARGUMENT.
absl::StatusOr<nlohmann::json> ReadHubJson(const std::string& path);

absl::Status ReadSize(const nlohmann::json& json, const char* key, int64_t* out);
absl::Status ReadString(const nlohmann::json& json, const char* key, std::string* out);
absl::Status ReadNorm(const nlohmann::json& json, const char* key, float* out);
// *out does not change when the key is absent.
absl::Status ReadFlag(const nlohmann::json& json, const char* key, bool* out);
// Refuses a flag with another value than `supported`, which changes what the network computes in a
// way that is not supported. The key may be absent.
absl::Status CheckFlag(const nlohmann::json& json, const char* key, bool supported);
absl::Status ReadActivation(const nlohmann::json& json, const char* key, Activation* out);

// The causal mixer of a model whose attention has `heads` heads.
MixerConfig HubAttention(const AttentionOptions& options, int64_t heads);

// Takes the files of a byte-level BPE from `dir`, and sets the tokenizer in the import's config.
// `config` is config.json of the model's folder, `model_dir` ("": the model has none). An encoder's
// texts get the tokens around them that tokenizer.json names or, without that file, config.json's
// bos_token_id and eos_token_id. All other texts end with the eos_token_id of the model's configs
// (ImportGpt2). Errors name the file.
absl::Status UseHubTokenizer(const std::string& dir, const std::string& model_dir,
                             const nlohmann::json& config, Import* import);

// Reads how a folder of sentence-transformers (modules.json and the configs of its modules) makes
// one vector of a text. Its max_seq_length, or else its tokenizer's model_max_length, lowers
// config->max_seq_len, so that a longer text, which the package cuts, is refused. If the model
// `has_tokenizer`, do_lower_case and a default prompt are refused, because no tokenizer here
// changes or adds letters. Other folders leave `config` as it is. Errors name the file.
absl::Status UseSentenceModules(const std::string& dir, bool has_tokenizer, NetworkConfig* config);

}  // namespace aft
