#include "model/config/rules.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/config/json_fields.h"
#include "model/config/mixer_fields.h"

namespace aft {
namespace {

constexpr int64_t kByteVocabSize = 256;
// Keeps the s * s taps of all heads and layers far below 2^63.
constexpr int64_t kMaxGridWindow = 1023;

std::string OrAbsent(int64_t value) {
  return value == 0 ? std::string("absent") : absl::StrCat(value);
}

// The table of position biases: which form, how many rows.
absl::Status CheckBias(const NetworkConfig& config) {
  const MixerConfig& mixer = config.mixer;
  const bool local = mixer.kind == MixerKind::kAftLocal;
  const bool full = mixer.kind == MixerKind::kAftFull;
  if (full && mixer.bias == BiasForm::kBand) {
    return KeyError("mixer.bias", "must be \"full\" or \"factors\" for aft_full, got \"band\"");
  }
  if (local && mixer.window == 0 && mixer.bias != BiasForm::kBand) {
    return KeyError("mixer.bias", "must be absent or \"band\" without a window");
  }
  if (local && mixer.window == 0 && mixer.band_rows > 0) {
    return KeyError("mixer.band_rows",
                    absl::StrCat("must be absent or 0 without a window, got ", mixer.band_rows));
  }
  const bool needs_rows = mixer.bias != BiasForm::kBand || mixer.kind == MixerKind::kLocation;
  if (needs_rows && mixer.band_rows == 0) {
    return KeyError("mixer.band_rows",
                    absl::StrCat("must be >= 1 for ",
                                 local ? "this mixer.bias" : MixerKindName(mixer.kind), ", got 0"));
  }
  if (mixer.band_rows == 0 && mixer.length_policy != LengthPolicy::kError) {
    return KeyError("mixer.length_policy",
                    "must be absent or \"error\" without mixer.band_rows: there is no limit");
  }
  if (mixer.band_rows > 0 && mixer.length_policy == LengthPolicy::kError &&
      config.max_seq_len != mixer.band_rows) {
    const char* allowed =
        needs_rows ? "must be equal to max_seq_len (" : "must be 0 or equal to max_seq_len (";
    return KeyError("mixer.band_rows", absl::StrCat(allowed, OrAbsent(config.max_seq_len),
                                                    "), got ", mixer.band_rows));
  }
  const bool factors = mixer.bias == BiasForm::kFactors;
  if (factors != (mixer.bias_rank > 0)) {
    return KeyError("mixer.bias_rank",
                    absl::StrCat(factors ? "must be >= 1 with" : "must be absent or 0 without",
                                 " mixer.bias \"factors\", got ", mixer.bias_rank));
  }
  return absl::OkStatus();
}

absl::Status CheckConv(const MixerConfig& mixer) {
  if (mixer.kind != MixerKind::kAftConv) return absl::OkStatus();
  if (mixer.window == 0) {
    return KeyError("mixer.window", "must be >= 1 for aft_conv, got 0");
  }
  if (!mixer.causal && mixer.window % 2 == 0) {
    return KeyError("mixer.window",
                    absl::StrCat("must be odd for a bidirectional aft_conv, got ", mixer.window));
  }
  if (mixer.grid && mixer.causal) {
    return KeyError("mixer.grid", "must be false unless mixer.causal is false");
  }
  if (mixer.grid && mixer.window > kMaxGridWindow) {
    return KeyError("mixer.window", absl::StrCat("must be <= ", kMaxGridWindow,
                                                 " with mixer.grid, got ", mixer.window));
  }
  if (mixer.reparameterized && mixer.window == 1) {
    return KeyError("mixer.reparameterized",
                    "must be false with a mixer.window of 1: one tap has no spread");
  }
  const MixerConfig defaults;
  if (!mixer.reparameterized && mixer.std_eps != defaults.std_eps) {
    return KeyError("mixer.std_eps", "must be absent or 0 unless mixer.reparameterized is true");
  }
  if (!mixer.reparameterized && mixer.unbiased_std != defaults.unbiased_std) {
    return KeyError("mixer.unbiased_std",
                    "must be absent or true unless mixer.reparameterized is true");
  }
  return absl::OkStatus();
}

absl::Status CheckMixer(const NetworkConfig& config) {
  const MixerConfig& mixer = config.mixer;
  AFT_RETURN_IF_ERROR(CheckUnusedFields(mixer));
  AFT_RETURN_IF_ERROR(CheckBias(config));
  AFT_RETURN_IF_ERROR(CheckConv(mixer));
  if (const int64_t width = MixerWidth(config); width % mixer.heads != 0) {
    return KeyError("mixer.heads",
                    absl::StrCat("must divide the mixer's width (", width, "), got ", mixer.heads));
  }
  if (mixer.prefix_block != 0 && !mixer.causal) {
    return KeyError(
        "mixer.prefix_block",
        absl::StrCat("must be absent or 0 when mixer.causal is false, got ", mixer.prefix_block));
  }
  const int64_t min_block = std::max<int64_t>(mixer.window, 1);
  if (mixer.prefix_block != 0 && mixer.prefix_block < min_block) {
    return KeyError("mixer.prefix_block",
                    absl::StrCat("must be 0 or >= ", min_block, ", got ", mixer.prefix_block));
  }
  if (mixer.full_decode && !mixer.causal) {
    return KeyError("mixer.full_decode", "must be false when mixer.causal is false");
  }
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
  if (config.architecture != Architecture::kMixer && config.mixer.grid) {
    return KeyError("mixer.grid", "must be false unless the architecture is mixer, got true");
  }
  if (config.tokenizer == "bytes" && config.vocab_size != kByteVocabSize) {
    return KeyError("vocab_size",
                    absl::StrCat("must be ", kByteVocabSize, " with the bytes tokenizer, got ",
                                 config.vocab_size));
  }
  return absl::OkStatus();
}

}  // namespace aft
