#include "model/config/rules.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/config/json_fields.h"
#include "model/config/kinds.h"
#include "model/config/mixer_fields.h"

namespace aft {
namespace {

constexpr int64_t kByteVocabSize = 256;

absl::Status CheckMixer(const NetworkConfig& config) {
  AFT_RETURN_IF_ERROR(CheckUnusedFields(config.mixer));
  for (const auto rule : SpecOf(config.mixer.kind).rules) AFT_RETURN_IF_ERROR(rule(config));
  return absl::OkStatus();
}

absl::Status CheckLength(const NetworkConfig& config) {
  const int64_t rows = config.position_rows;
  if (config.position == PositionKind::kLearned &&
      (config.max_seq_len == 0 || config.max_seq_len > rows)) {
    return KeyError("max_seq_len", absl::StrCat("must be >= 1 and <= position.rows (", rows,
                                                "), got ", OrAbsent(config.max_seq_len)));
  }
  if (config.mixer.causal && StateGrows(config.mixer) && config.max_seq_len == 0) {
    return KeyError("max_seq_len",
                    absl::StrCat("must be >= 1 for ", MixerKindName(config.mixer.kind),
                                 ": a sequence's state grows with it, got absent"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckConfigRules(const NetworkConfig& config) {
  AFT_RETURN_IF_ERROR(CheckMixer(config));
  AFT_RETURN_IF_ERROR(CheckLength(config));
  if (config.architecture == Architecture::kDecoderLm && !config.mixer.causal) {
    return KeyError("mixer.causal", "must be true for the architecture decoder_lm, got false");
  }
  if (config.tokenizer == "bytes" && config.vocab_size != kByteVocabSize) {
    return KeyError("vocab_size",
                    absl::StrCat("must be ", kByteVocabSize, " with the bytes tokenizer, got ",
                                 config.vocab_size));
  }
  return absl::OkStatus();
}

}  // namespace aft
