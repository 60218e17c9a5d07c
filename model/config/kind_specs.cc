#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/config/config.h"
#include "model/config/json_fields.h"
#include "model/config/kinds.h"
#include "model/config/tensors.h"

namespace aft {
namespace {

// ---- What several kinds share

std::vector<PackedPart> QueryKeyValue(const MixerConfig& /*mixer*/, int64_t hid) {
  return {{"q", hid}, {"k", hid}, {"v", hid}};
}

bool Always(const MixerConfig& /*mixer*/) { return true; }

absl::Status HeadsDivideTheWidth(const NetworkConfig& config) {
  const int64_t width = MixerWidth(config);
  if (width % config.mixer.heads == 0) return absl::OkStatus();
  return KeyError("mixer.heads", absl::StrCat("must divide the mixer's width (", width, "), got ",
                                              config.mixer.heads));
}

absl::Status PrefixBlockHoldsTheWindow(const NetworkConfig& config) {
  const MixerConfig& mixer = config.mixer;
  if (mixer.prefix_block == 0) return absl::OkStatus();
  if (!mixer.causal) {
    return KeyError(
        "mixer.prefix_block",
        absl::StrCat("must be absent or 0 when mixer.causal is false, got ", mixer.prefix_block));
  }
  const int64_t least = std::max<int64_t>(mixer.window, 1);
  if (mixer.prefix_block >= least) return absl::OkStatus();
  return KeyError("mixer.prefix_block",
                  absl::StrCat("must be 0 or >= ", least, ", got ", mixer.prefix_block));
}

// Checks T = band_rows of a table by absolute position. `whose` names what has the table; `needed`
// says whether it must have one.
absl::Status CheckRows(const NetworkConfig& config, bool needed, absl::string_view whose) {
  const MixerConfig& mixer = config.mixer;
  if (mixer.band_rows == 0) {
    if (needed) {
      return KeyError("mixer.band_rows", absl::StrCat("must be >= 1 for ", whose, ", got 0"));
    }
    if (mixer.length_policy == LengthPolicy::kError) return absl::OkStatus();
    return KeyError("mixer.length_policy",
                    "must be absent or \"error\" without mixer.band_rows: there is no limit");
  }
  if (mixer.length_policy != LengthPolicy::kError || config.max_seq_len == mixer.band_rows) {
    return absl::OkStatus();
  }
  return KeyError("mixer.band_rows",
                  absl::StrCat("must be ", needed ? "" : "0 or ", "equal to max_seq_len (",
                               OrAbsent(config.max_seq_len), "), got ", mixer.band_rows));
}

absl::Status OnlyCausalMixersHaveARing(const NetworkConfig& config) {
  const MixerConfig& mixer = config.mixer;
  if (mixer.causal || mixer.ring == Number::kFp32) return absl::OkStatus();
  return KeyError("mixer.ring",
                  absl::StrCat("must be absent or \"fp32\" when mixer.causal is false: there is no "
                               "ring, got \"",
                               NumberName(mixer.ring), "\""));
}

// `window`: columns of the table that the factors are folded into. A few bytes of factors make a
// large table. So the size of the files does not limit the memory that a model takes, but this
// does.
absl::Status CheckRank(const MixerConfig& mixer, int64_t window) {
  constexpr int64_t kMostFolded = int64_t{1} << 28;  // floats: 1 GiB a layer
  const bool factors = mixer.bias == BiasForm::kFactors;
  if (factors != (mixer.bias_rank > 0)) {
    return KeyError("mixer.bias_rank",
                    absl::StrCat(factors ? "must be >= 1 with" : "must be absent or 0 without",
                                 " mixer.bias \"factors\", got ", mixer.bias_rank));
  }
  if (!factors || mixer.band_rows * window <= kMostFolded) return absl::OkStatus();
  return KeyError("mixer.band_rows",
                  absl::StrCat("must be at most ", kMostFolded / window, " with mixer.bias ",
                               "\"factors\" and a window of ", window, ", got ", mixer.band_rows));
}

// The position biases of AFT-local and AFT-full. s = window, T = band_rows.
std::vector<TensorSpec> BiasTables(const MixerConfig& mixer) {
  const int64_t rows = mixer.band_rows;
  switch (mixer.bias) {
    case BiasForm::kBand:  // column = t - t'; bidirectional: t - t' + s - 1
      return {{"w.band",
               {std::max<int64_t>(rows, 1), mixer.causal ? mixer.window : 2 * mixer.window - 1},
               TensorStart::kOffsets}};
    case BiasForm::kFull:  // [query, key]
      return {{"w.full", {rows, rows}, TensorStart::kDiagonals}};
    case BiasForm::kFactors: {  // N(0, 1e-2) as in the paper
      const std::vector<int64_t> shape = {rows, mixer.bias_rank};
      return {{"w.u", shape, TensorStart::kNormal, 0.1}, {"w.v", shape, TensorStart::kNormal, 0.1}};
    }
  }
  return {};
}

// ---- AFT (arXiv 2105.14103)

KindSpec AftSimple() {
  return {
      .kind = MixerKind::kAftSimple,
      .name = "aft_simple",
      .output = "sigmoid(q_t) * sum exp(k_t') v_t' / sum exp(k_t') (eq. 5)",
      .state = "3d, constant",
      .family = KernelFamily::kAft,
      .optional = {"prefix_block"},
      .rules = {PrefixBlockHoldsTheWindow},
      .packed = QueryKeyValue,
  };
}

absl::Status LocalBiasHasAWindow(const NetworkConfig& config) {
  const MixerConfig& mixer = config.mixer;
  if (mixer.window == 0 && mixer.bias != BiasForm::kBand) {
    return KeyError("mixer.bias", "must be absent or \"band\" without a window");
  }
  if (mixer.window == 0 && mixer.band_rows > 0) {
    return KeyError("mixer.band_rows",
                    absl::StrCat("must be absent or 0 without a window, got ", mixer.band_rows));
  }
  AFT_RETURN_IF_ERROR(CheckRows(config, mixer.bias != BiasForm::kBand, "this mixer.bias"));
  return CheckRank(mixer, mixer.window);
}

// window 0 equals AFT-simple. One row of w.band (band_rows 0) is shift-invariant.
KindSpec AftLocal() {
  return {
      .kind = MixerKind::kAftLocal,
      .name = "aft_local",
      .output = "the same with exp(k_t' + w(t,t')), w = 0 beyond the window (eq. 4)",
      .bias =
          "`w.band` one row (no length limit) or T rows, `w.full`, or factors `w.u`, `w.v` "
          "(eq. 7)",
      .state = "3d + 2(s-1)d, constant",
      .family = KernelFamily::kAft,
      .required = {"window"},
      .optional = {"band_rows", "prefix_block", "bias", "bias_rank", "length_policy", "ring"},
      .rules = {LocalBiasHasAWindow, PrefixBlockHoldsTheWindow, OnlyCausalMixersHaveARing},
      .packed = QueryKeyValue,
      .tables =
          [](const MixerConfig& mixer, int64_t /*hid*/) {
            return mixer.window > 0 ? BiasTables(mixer) : std::vector<TensorSpec>();
          },
      .bias_window = [](const MixerConfig& mixer) { return mixer.window; },
  };
}

absl::Status FullBiasHasEveryPair(const NetworkConfig& config) {
  if (config.mixer.bias == BiasForm::kBand) {
    return KeyError("mixer.bias", "must be \"full\" or \"factors\" for aft_full, got \"band\"");
  }
  AFT_RETURN_IF_ERROR(CheckRows(config, true, "aft_full"));
  return CheckRank(config.mixer, config.mixer.band_rows);
}

KindSpec AftFull() {
  return {
      .kind = MixerKind::kAftFull,
      .name = "aft_full",
      .output = "the same, w everywhere (eq. 2)",
      .bias = "`w.full` or factors",
      .state = "that of a window of T",
      .family = KernelFamily::kAft,
      .required = {"band_rows", "bias"},
      .optional = {"bias_rank", "length_policy", "ring"},
      .rules = {FullBiasHasEveryPair, OnlyCausalMixersHaveARing},
      .packed = QueryKeyValue,
      .tables = [](const MixerConfig& mixer, int64_t /*hid*/) { return BiasTables(mixer); },
      .bias_window = [](const MixerConfig& mixer) { return mixer.band_rows; },
  };
}

absl::Status ConvFilterFits(const NetworkConfig& config) {
  // Keeps the s * s taps of all heads and layers far below 2^63.
  constexpr int64_t kMaxGridWindow = 1023;
  const MixerConfig& mixer = config.mixer;
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
  return absl::OkStatus();
}

absl::Status OnlyNormalisedFiltersHaveASpread(const NetworkConfig& config) {
  const MixerConfig& mixer = config.mixer;
  const MixerConfig defaults;
  if (mixer.reparameterized && mixer.window == 1) {
    return KeyError("mixer.reparameterized",
                    "must be false with a mixer.window of 1: one tap has no spread");
  }
  if (!mixer.reparameterized && mixer.std_eps != defaults.std_eps) {
    return KeyError("mixer.std_eps", "must be absent or 0 unless mixer.reparameterized is true");
  }
  if (!mixer.reparameterized && mixer.unbiased_std != defaults.unbiased_std) {
    return KeyError("mixer.unbiased_std",
                    "must be absent or true unless mixer.reparameterized is true");
  }
  return absl::OkStatus();
}

std::vector<TensorSpec> ConvTables(const MixerConfig& mixer, int64_t /*hid*/) {
  const int64_t heads = mixer.heads;
  // Column = t - t'; bidirectional: column 0 = earliest key, column (s - 1) / 2 = t' = t.
  TensorSpec filter = {"conv.w", {heads, mixer.window}, TensorStart::kOffsets};
  if (mixer.grid) {  // [head, key row, key column]
    filter.shape.push_back(mixer.window);
    // The heads start with different directions, so strong that the near keys outweigh all others.
    // With a smaller spread the model sees an image as a set of pixels without places at first, and
    // training takes long to change that.
    filter.start = TensorStart::kNormal;
    filter.spread = 4.0;
  }
  if (!mixer.reparameterized) return {filter};
  filter.start = TensorStart::kNormal;  // only its direction matters; gamma and beta start at 0
  filter.spread = 1.0;
  return {filter, {"conv.gamma", {heads}}, {"conv.beta", {heads}}};
}

KindSpec AftConv() {
  return {
      .kind = MixerKind::kAftConv,
      .name = "aft_conv",
      .output = "the same, one key per head, w a filter of s taps per head (eq. 6)",
      .bias = "`conv.w`, optionally normalised with gamma, beta (eq. 8)",
      .state = "d + 2h + (s-1)(d+h), constant",
      .family = KernelFamily::kConv,
      .required = {"window"},
      .optional = {"heads", "ring", "reparameterized", "std_eps", "unbiased_std", "grid"},
      .rules = {ConvFilterFits, OnlyNormalisedFiltersHaveASpread, HeadsDivideTheWidth,
                OnlyCausalMixersHaveARing},
      .packed =
          [](const MixerConfig& mixer, int64_t hid) {
            return std::vector<PackedPart>{{"q", hid}, {"k", mixer.heads}, {"v", hid}};
          },
      .tables = ConvTables,
  };
}

// ---- Attention

absl::Status OnlyCausalBlocksDecode(const NetworkConfig& config) {
  if (!config.mixer.full_decode || config.mixer.causal) return absl::OkStatus();
  return KeyError("mixer.full_decode", "must be false when mixer.causal is false");
}

// github.com/ccdv-ai/convert_checkpoint_to_lsg.
KindSpec BlockLocal() {
  return {
      .kind = MixerKind::kBlockLocal,
      .name = "block_local",
      .output =
          "softmax(q.k / sqrt(width)) over the own block of b tokens, the one before "
          "(bidirectional: and after), and the first token, which bidirectional sees every "
          "token (LSG)",
      .state = "(4b+2)d, constant",
      .family = KernelFamily::kAttention,
      .required = {"block_size"},
      .optional = {"heads", "global_token", "full_decode"},
      .rules = {HeadsDivideTheWidth, OnlyCausalBlocksDecode},
      .packed = QueryKeyValue,
      .state_grows = [](const MixerConfig& mixer) { return mixer.full_decode; },
      .attention = {.score = AttentionScore::kScaledDot},
  };
}

// arXiv 1706.03762.
KindSpec DotProduct() {
  return {
      .kind = MixerKind::kDotProduct,
      .name = "dot_product",
      .output = "softmax(q.k / sqrt(width)) v",
      .state = "2d per token",
      .family = KernelFamily::kAttention,
      .optional = {"heads"},
      .rules = {HeadsDivideTheWidth},
      .packed = QueryKeyValue,
      .state_grows = Always,
      .attention = {.score = AttentionScore::kScaledDot},
  };
}

// arXiv 1410.5401, eq. 5.
KindSpec Cosine() {
  return {
      .kind = MixerKind::kCosine,
      .name = "cosine",
      .output =
          "softmax(beta cos(q, k)) v, key strength beta = softplus(b) per query and head (NTM)",
      .state = "2d per token",
      .family = KernelFamily::kAttention,
      .optional = {"heads"},
      .rules = {HeadsDivideTheWidth},
      .packed =
          [](const MixerConfig& mixer, int64_t hid) {
            return std::vector<PackedPart>{{"q", hid}, {"k", hid}, {"v", hid}, {"b", mixer.heads}};
          },
      .state_grows = Always,
      .attention = {.score = AttentionScore::kCosine},
  };
}

// arXiv 1409.0473. The bias b of tanh(q + k + b) is the bias of q's projection.
KindSpec Additive() {
  return {
      .kind = MixerKind::kAdditive,
      .name = "additive",
      .output = "softmax(u . tanh(q + k)) v (Bahdanau)",
      .bias = "`score.v`",
      .state = "(a h + d) per token",
      .family = KernelFamily::kAttention,
      .required = {"score_width"},
      .optional = {"heads"},
      .rules = {HeadsDivideTheWidth},
      .packed =
          [](const MixerConfig& mixer, int64_t hid) {
            const int64_t keys = mixer.heads * mixer.score_width;
            return std::vector<PackedPart>{{"q", keys}, {"k", keys}, {"v", hid}};
          },
      .tables =
          [](const MixerConfig& mixer, int64_t /*hid*/) {
            return std::vector<TensorSpec>{
                {"score.v",
                 {mixer.heads, mixer.score_width},
                 TensorStart::kNormal,
                 1.0 / std::sqrt(static_cast<double>(mixer.score_width))}};
          },
      .state_grows = Always,
      .attention = {.score = AttentionScore::kAdditive, .score_table = "score.v"},
  };
}

absl::Status LocationsHaveRows(const NetworkConfig& config) {
  return CheckRows(config, true, "location");
}

// arXiv 1508.04025, eq. 8.
KindSpec Location() {
  return {
      .kind = MixerKind::kLocation,
      .name = "location",
      .output = "softmax(W_a q) v, positions up to t (Luong, eq. 8)",
      .bias = "`location.weight`",
      .state = "d per token",
      .family = KernelFamily::kAttention,
      .required = {"band_rows"},
      .rules = {LocationsHaveRows},
      .packed =
          [](const MixerConfig& /*mixer*/, int64_t hid) {
            return std::vector<PackedPart>{{"q", hid}, {"v", hid}};
          },
      .tables =
          [](const MixerConfig& mixer, int64_t hid) {  // row = position attended to
            return std::vector<TensorSpec>{
                {"location.weight", {mixer.band_rows, hid}, TensorStart::kWeight}};
          },
      .state_grows = Always,
      .attention = {.key_table = "location.weight"},
  };
}

// ---- RWKV

// arXiv 2305.13048, eq. 16 and 17. The decay is exp(-exp(mixer.decay)).
KindSpec Wkv4() {
  return {
      .kind = MixerKind::kWkv4,
      .name = "wkv4",
      .output = "sigmoid(r_t) * sum exp(k_t' + w(t,t')) v_t' / sum exp(k_t' + w(t,t')) (RWKV-4)",
      .bias = "w = `bonus` for t' = t, else -(t - t' - 1) exp(`decay`)",
      .state = "3d, and 2d for the token shifts, constant",
      .family = KernelFamily::kWkv,
      .packed =
          [](const MixerConfig& /*mixer*/, int64_t hid) {
            return std::vector<PackedPart>{{"r", hid}, {"k", hid}, {"v", hid}};
          },
      .tables =
          [](const MixerConfig& /*mixer*/, int64_t hid) {
            return std::vector<TensorSpec>{{"decay", {hid}, TensorStart::kNormal, 1.0},
                                           {"bonus", {hid}, TensorStart::kNormal, 0.5}};
          },
      .token_shift = true,
  };
}

// arXiv 2503.14456, eq. 3 to 22.
KindSpec Wkv7() {
  using Between = PackedPart::Between;
  return {
      .kind = MixerKind::kWkv7,
      .name = "wkv7",
      .output =
          "g_t * (norm(S_t r_t) + (r_t . `bonus` k_t) v_t), S_t = S_t-1 (diag(w_t) - c_t (a_t "
          "c_t)^T) + v_t k_t^T, c the unit vector of `key_scale` k (RWKV-7)",
      .bias = "decay w and rate a of each token and channel; `key_rate`, `group_norm`",
      .state = "d^2 / heads, and 2d for the token shifts, constant",
      .family = KernelFamily::kWkv,
      .required = {"heads", "decay_rank", "rate_rank", "value_rank", "gate_rank"},
      .optional = {"initial_state"},
      .rules = {HeadsDivideTheWidth},
      .packed =
          [](const MixerConfig& mixer, int64_t hid) {
            return std::vector<PackedPart>{{"r", hid},
                                           {"w", hid, mixer.decay_rank, Between::kTanh, true},
                                           {"k", hid},
                                           {"v", hid},
                                           {"a", hid, mixer.rate_rank, Between::kNothing, true},
                                           {"g", hid, mixer.gate_rank, Between::kSigmoid}};
          },
      .tables =
          [](const MixerConfig& mixer, int64_t hid) {
            std::vector<TensorSpec> tables = {{"key_scale", {hid}, TensorStart::kOnes},
                                              {"key_rate", {hid}, TensorStart::kOnes},
                                              {"bonus", {hid}},
                                              {"group_norm.weight", {hid}, TensorStart::kOnes},
                                              {"group_norm.bias", {hid}}};
            const int64_t width = hid / mixer.heads;
            if (mixer.initial_state) {
              tables.push_back({"initial_state", {mixer.heads, width, width}});
            }
            return tables;
          },
      .token_shift = true,
      .value_gate =
          [](const MixerConfig& mixer, int64_t hid) {
            return PackedPart{"v_gate", hid, mixer.value_rank, Between::kNothing, true};
          },
  };
}

}  // namespace

absl::Span<const KindSpec> AllKinds() {
  static const auto* const kinds = new std::vector<KindSpec>{
      AftSimple(), AftLocal(), AftFull(),  AftConv(), BlockLocal(), DotProduct(),
      Cosine(),    Additive(), Location(), Wkv4(),    Wkv7()};
  return *kinds;
}

const KindSpec& SpecOf(MixerKind kind) {
  const KindSpec& spec = AllKinds().at(static_cast<size_t>(kind));
  AFT_CHECK(spec.kind == kind);
  return spec;
}

}  // namespace aft
