#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/api/pooling.h"
#include "model/api/sampling_params.h"  // TokenId, SampledToken, TokenUse

// The interface between server and model: the server schedules rows over numbered slots, and the
// runner owns the bytes of the slots. No LibTorch, CUDA or gRPC type appears here.
namespace aft {

// The forms of input that an encoder or a bare mixer accepts in addition to a sequence of vectors
// and a mask of its keys.
struct EncoderForms {
  bool pairs = false;         // EncoderInput::pairs
  bool sources = false;       // EncoderInput::keys and values
  bool keyless = false;       // only EncoderInput::values, no keys
  bool free_lengths = false;  // more or fewer keys and values than queries
};

// The facts about a loaded model. They do not change during the runner's life.
struct ModelInfo {
  std::string architecture;  // the mixer, e.g. "aft_local"
  std::string tokenizer{};   // its kind in config.json, e.g. "bytes"; empty: there is none
  int64_t vocab_size = 0;    // 0: a bare mixer, which takes vectors only
  bool causal = true;        // a token sees no token after it
  // The most columns of an image, for an encoder or bare mixer with 2-D filters, which takes
  // images. 0: the model takes no images.
  int64_t max_image_width = 0;
  EncoderForms forms{};     // of an encoder or bare mixer
  int64_t parameters = 0;   // number of weights
  int64_t max_seq_len = 0;  // tokens; 0: unlimited
  int64_t state_bytes = 0;  // bytes of one slot
  // The bytes of state_bytes that one token of context fills; 0: the state's size is constant.
  int64_t state_bytes_per_token = 0;
  // A growing state makes room for up to this number of tokens of context at once.
  int64_t state_block_tokens = 1;
  int64_t weight_bytes = 0;
  // The most main memory that the model takes: weights, slots and workspace. When these are in a
  // GPU's memory, it takes the pinned buffers that batches are copied from and to.
  int64_t memory_bytes = 0;
  // A hash of weights, config, number formats and the layout of the state. Runners with equal
  // fingerprints take each other's snapshots.
  uint64_t fingerprint = 0;
  // Everything else that decides the bits of the results. Runners with equal `numerics` and
  // fingerprints give the same tokens, whatever other sequences are in their batches. Empty: this
  // runner makes no such promise.
  std::string numerics{};
  // The model reads tokens that it generated itself in another way than those of a prompt.
  bool generated_differ = false;
  // Size of a token's hidden vector (RowOutput::kHidden); 0: this is not a language model.
  int64_t hidden_width = 0;
  // How the vector of a text is made when a request leaves the choice to the model. An encoder
  // without a head uses what it was made for. A language model uses the vector of the last token,
  // because only that token has seen all of the text.
  Pooling pooling = Pooling::kMean;
  bool normalize = false;
  std::vector<std::string> labels{};  // classes of a classifier, in the order of its logits
  std::string weight_format;          // "fp32"
  std::string device;                 // "cpu (AVX2, 3 threads)", "cuda:0 (NVIDIA H100)"
};

// The values that a device reports about itself, for metrics.
struct DeviceStats {
  int64_t memory_total = 0;  // bytes
  int64_t memory_used = 0;   // by all programs; not read after every step
  // For the step that was collected last: its time on the device, copies included, and whether it
  // was one launch of a recorded graph (otherwise its operators were queued one by one).
  double step_seconds = 0;
  bool step_was_graph = false;
};

// Stands in a decode row instead of a token id for the token that the row's slot sampled last. A
// GPU knows that token before its host does.
inline constexpr TokenId kLastSampled = -1;

enum class RowOutput {
  kNone,    // advance the state only (every prompt chunk but the last)
  kLast,    // sample one token from the row's last position; the prompt ends there
  kScore,   // the log-probability of every target (teacher forcing)
  kHidden,  // the vectors after the last layer and its norm, which the head reads
};

// One row of a step: `tokens` are consumed by the sequence in `slot` at positions first_position,
// first_position + 1, ... A prompt chunk has many tokens, a decode row one.
struct StepRow {
  int32_t slot = -1;
  // Position of tokens[0] in its sequence. 0 starts a new sequence: what the slot held is ignored.
  int64_t first_position = 0;
  std::vector<TokenId> tokens;
  RowOutput output = RowOutput::kNone;
  // kScore: targets[i] is the token that follows tokens[i]. As many as tokens, or one less when the
  // text ends with the row.
  std::vector<TokenId> targets{};
  // kLast: tokens that must not be drawn here, in addition to those that the slot's rules exclude.
  // They are in the order of ids, each once, at most kMaxRowBans. When this row has bans, or the
  // previous row of its slot had some, no other step that names the slot may be uncollected.
  std::vector<TokenId> banned{};
  // kHidden: the number of tokens at the end of the row whose vectors are wanted; at least 1.
  int64_t hidden = 0;

  // The position after its last token.
  int64_t end() const { return first_position + static_cast<int64_t>(tokens.size()); }
};
inline constexpr size_t kMaxRowBans = 256;

// One flat batch. At most one row per slot.
struct StepInput {
  std::vector<StepRow> rows;
};

struct StepOutput {
  // sampled[i] belongs to the i-th row whose output is kLast, in row order. An id of kNoToken means
  // that this row's sequence must end; the other rows are not affected.
  std::vector<SampledToken> sampled;
  // scored[i] belongs to the i-th row whose output is kScore: one entry per target, with the
  // target's id, its log-probability and the alternatives that the slot's SamplingParams ask for.
  // An id of kNoToken: the model produced no distribution there; the sequence must end.
  std::vector<std::vector<SampledToken>> scored{};
  // hidden[i] belongs to the i-th row whose output is kHidden: [StepRow::hidden, hidden_width].
  // The numbers are not finite where the model overflows.
  std::vector<std::vector<float>> hidden{};
};

// A copy of a sequence's state outside the slots; see ModelRunner::KeepSlot. Immutable and
// thread-safe. It may be used and released on any thread, and after its runner.
class KeptState {
 public:
  virtual ~KeptState() = default;
  virtual int64_t bytes() const = 0;  // of the memory that it is kept in

  // Returns bytes that outlive the process: a header (magic, layout version, fingerprint of the
  // model and its state's layout, position), and the part of the state that the sequence has
  // written (the rest is zeros, whatever the slot held before). Two sequences with the same tokens,
  // of which the same ones were sampled, have the same bytes when the runner computes the same
  // bits. Waits until the copy is in the host's memory. Errors are those of the device. Throws
  // std::bad_alloc when there is no memory for the bytes. REQUIRES: it is kept in the host's
  // memory.
  virtual absl::StatusOr<std::string> Snapshot() const = 0;
};

// The memory that a state is kept in. They are the same where the device is the CPU.
enum class KeptIn { kDevice, kHost };

// The beginning of a sequence that gets a slot: nothing; a copy of the sequence in another slot,
// which continues independently; a state that KeepSlot kept; or the bytes of a snapshot.
struct NewSequence {};
struct ForkOf {
  int32_t slot;
};
using StateSource = std::variant<NewSequence, ForkOf, const KeptState*, absl::string_view>;

// How a sequence samples in its slot.
struct SlotTerms {
  SamplingParams sampling{};
  // The index of its next output token. It is not 0 when the text already has output tokens.
  uint64_t output_index = 0;
  // The tokens that the text has had so far; only penalties depend on them. `had` has each id of
  // the text before this request's output once. `sampled` is that output so far, in order, whose
  // last token has the index before output_index. The runner adds the tokens that the sequence
  // consumes and samples.
  absl::Span<const TokenUse> had{};
  absl::Span<const TokenId> sampled{};
};

// Runs one model on one device. Thread-compatible: one thread (the engine's) makes every call.
class ModelRunner {
 public:
  // Identifies one submitted step.
  using Ticket = uint64_t;

  virtual ~ModelRunner() = default;

  virtual const ModelInfo& info() const = 0;

  // Null where the device is the CPU. Changes with Collect.
  virtual const DeviceStats* device_stats() const { return nullptr; }

  // Slots are numbered 0 .. slots() - 1. All memory for them exists from construction on.
  virtual int32_t slots() const = 0;

  // Largest number of tokens, and of rows, that one StepInput may hold.
  virtual int64_t max_step_tokens() const = 0;

  // The thread that makes all later calls must call this first. It makes the data that a device's
  // libraries keep for each thread, so that the first step does not have to. If that fails, the
  // first step reports the reason.
  virtual void PrepareThread() {}

  // Gives `slot` to a sequence that begins from `from`, and returns how many tokens that sequence
  // has consumed: the position of its next row. kLastSampled is not valid before the sequence has
  // sampled a token. A fork of the slot itself gives new terms to the sequence that is there. A GPU
  // continues to work meanwhile; the call waits only for a copy to the host that has just begun.
  // INVALID_ARGUMENT: the snapshot is damaged or of another model; the slot is as it was. INTERNAL,
  // RESOURCE_EXHAUSTED, UNAVAILABLE as in Collect: the slot's state is undefined, and only a new
  // sequence may use it.
  // REQUIRES: 0 <= slot < slots(); every submitted step that names the slot, or the slot that is
  // forked, is collected; a kept state is this runner's; ids of the terms are of the vocabulary.
  virtual absl::StatusOr<int64_t> BindSlot(int32_t slot, const StateSource& from,
                                           const SlotTerms& terms) = 0;

  // Keeps a copy of the state of the sequence in `slot`. This costs what a fork costs, and does not
  // wait for a GPU: its copy to the host's memory runs alongside the steps that follow. (Without
  // memory on the device for a copy in between, it waits.) RESOURCE_EXHAUSTED: there is no memory
  // for the copy. Other errors are those of the device. REQUIRES: as for BindSlot.
  virtual absl::StatusOr<std::shared_ptr<const KeptState>> KeepSlot(int32_t slot,
                                                                    KeptIn memory) = 0;

  // The number of steps that may be submitted and not yet collected: 1, or 2 when the device works
  // on one step while the host prepares the next one.
  virtual int max_steps_in_flight() const { return 1; }

  // Starts a step. A CPU runner may compute inside this call; a GPU runner returns while the device
  // works. Errors: INVALID_ARGUMENT when a row breaks the rules above (slot or token id out of
  // range, slot twice, too many tokens, kLastSampled where nothing was sampled); nothing is
  // computed then. REQUIRES: fewer than max_steps_in_flight() steps are uncollected.
  virtual absl::StatusOr<Ticket> Submit(const StepInput& input) = 0;

  // Waits for the step and replaces the content of `output`, whose memory it reuses, by the results
  // of the step. Steps are collected in the order in which they were submitted. After an error the
  // states of the step's slots are undefined: their sequences must end. INTERNAL, and
  // RESOURCE_EXHAUSTED when there is no memory, here or from Submit: the runner itself stays
  // usable. UNAVAILABLE, here or from Submit: its device is lost, and every later step fails in the
  // same way.
  virtual absl::Status Collect(Ticket ticket, StepOutput& output) = 0;
};

}  // namespace aft
