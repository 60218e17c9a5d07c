#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace aft {

struct MixerConfig;    // model/config/config.h
struct NetworkConfig;  // model/config/config.h
struct TensorSpec;     // model/config/tensors.h

// The operators. kind_specs.cc describes each of them on one page.
enum class MixerKind {
  kAftSimple,
  kAftLocal,
  kAftFull,
  kAftConv,
  kBlockLocal,
  kDotProduct,
  kCosine,
  kAdditive,
  kLocation,
  kWkv4,
  kWkv7,
};

// The family of kernels that computes a kind. A device distinguishes kinds by their family only.
enum class KernelFamily {
  kAft,        // kernels/aft/aft.h: means weighted by exp(key + position bias), per channel
  kConv,       // kernels/conv/conv.h: like kAft, with one key and one filter of biases per head
  kAttention,  // kernels/attention/attention.h: softmax over scores of a query and keys
  kWkv,        // kernels/wkv: RWKV's recurrences, with a decay in place of position biases
};

// The score by which an attention weighs a key.
enum class AttentionScore {
  kDot,        // q . k
  kScaledDot,  // q . k / sqrt(head width)
  kCosine,     // strength of the query * cos(q, k)
  kAdditive,   // table . tanh(q + k)
};

// A group of columns of the packed input of a mixer. Rows of mixer.qkv.weight make these columns;
// with KindSpec::token_shift, matrices of their own do.
struct PackedPart {
  const char* name;
  int64_t columns;
  // token_shift: the part is a product of two matrices with `rank` numbers between them, to which
  // `between` applies. 0: it is one product.
  int64_t rank = 0;
  enum class Between { kNothing, kTanh, kSigmoid } between = Between::kNothing;
  bool bias = false;  // of the second matrix
};

// The description of one kind. All code that reads configs, makes tensors or computes uses it.
struct KindSpec {
  MixerKind kind;
  const char* name;  // "mixer.kind" of config.json

  // Texts for readers, in the notation of model/README.md, whose table of operators contains them.
  const char* output;      // of token t
  const char* bias = "";   // or score, and the tensors that hold it
  const char* state = "";  // of a sequence

  KernelFamily family;

  // Keys of the fields of MixerConfig that the kind uses, other than kind, causal and hidden, which
  // every kind uses. All other fields must keep their defaults.
  std::vector<absl::string_view> required = {};
  std::vector<absl::string_view> optional = {};

  // Rules between fields; each field alone is known to be in its range. INVALID_ARGUMENT names the
  // key that has to change.
  std::vector<absl::Status (*)(const NetworkConfig& config)> rules = {};

  // The parts of the packed input of a mixer of width `hid`, in their order.
  std::vector<PackedPart> (*packed)(const MixerConfig& mixer, int64_t hid);

  // The tables of the kind, with their names after "layers.N.mixer."; null: it has none.
  std::vector<TensorSpec> (*tables)(const MixerConfig& mixer, int64_t hid) = nullptr;

  // RWKV's token shift. The input of each part of the packed input is a mix of a token's vector and
  // the vector of the token before it, with shares for each part and channel (mixer.shift). The
  // layer keeps the last vector as state. Such kinds are causal, need a language model with one of
  // RWKV's feed-forwards, and have no masks.
  bool token_shift = false;
  // token_shift: the gate by whose sigmoid the values (part "v") of all layers but the first are
  // mixed with those of the first. It has a low rank, and reads the input of "v". Null: values are
  // not mixed.
  PackedPart (*value_gate)(const MixerConfig& mixer, int64_t hid) = nullptr;

  // Whether a sequence's state grows with its length, up to max_seq_len; null: it does not.
  bool (*state_grows)(const MixerConfig& mixer) = nullptr;

  // Family kAft: tokens closer than this, |t - t'| < window, have a position bias; null: no bias.
  int64_t (*bias_window)(const MixerConfig& mixer) = nullptr;

  // Family kAttention.
  struct Attention {
    AttentionScore score = AttentionScore::kDot;
    const char* score_table = nullptr;  // kAdditive: [heads, score_width]
    // A table of keys by position, [band_rows, hid], instead of keys made from the tokens; one
    // head.
    const char* key_table = nullptr;
  } attention = {};
};

// In the order of MixerKind.
absl::Span<const KindSpec> AllKinds();
const KindSpec& SpecOf(MixerKind kind);

}  // namespace aft
