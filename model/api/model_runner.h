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

// The seam between server and model: the server schedules rows over numbered slots, the runner owns
// their bytes. No LibTorch, CUDA or gRPC type appears here.
namespace aft {

// What an encoder or a bare mixer takes beside one sequence of vectors and a mask of its keys.
struct EncoderForms {
  bool pairs = false;         // EncoderInput::pairs
  bool sources = false;       // EncoderInput::keys and values
  bool keyless = false;       // of these only values
  bool free_lengths = false;  // which may be more or fewer than the queries
};

// What the server may know of a loaded model. Constant for the runner's life.
struct ModelInfo {
  std::string architecture;  // the mixer, e.g. "aft_local"
  int64_t vocab_size = 0;    // 0: a bare mixer, which takes vectors only
  bool causal = true;        // a token sees none that come after it
  // Of an encoder or bare mixer with 2-D filters, which takes images: their most columns; 0: it
  // takes none.
  int64_t max_image_width = 0;
  EncoderForms forms{};     // of an encoder or bare mixer
  int64_t parameters = 0;   // number of weights
  int64_t max_seq_len = 0;  // tokens; 0: unlimited
  int64_t state_bytes = 0;  // bytes of one slot
  // Of state_bytes, what one token of context fills; 0: the state's size is constant.
  int64_t state_bytes_per_token = 0;
  // Tokens of context that parts of a growing state make room for at once.
  int64_t state_block_tokens = 1;
  int64_t weight_bytes = 0;
  // Of the machine's memory, all that it has from load on: weights, slots and workspace. 0 where
  // these are a GPU's.
  int64_t memory_bytes = 0;
  // Of weights, config, number formats and the state's layout: runners whose fingerprints are equal
  // take each other's snapshots.
  uint64_t fingerprint = 0;
  // What else decides the bits of its results: runners that agree in it and in the fingerprint give
  // the same tokens, whatever else is in their batches. Empty: this one makes no such promise.
  std::string numerics{};
  // Tokens that it has generated itself are read otherwise than those of a prompt.
  bool generated_differ = false;
  // Numbers of a token's hidden vector (RowOutput::kHidden); 0: it is no language model.
  int64_t hidden_width = 0;
  // The vector of a text where a request leaves the choice to the model: of an encoder without a
  // head the one that it was made for; of a language model its last token's, which alone has seen
  // all of the text.
  Pooling pooling = Pooling::kMean;
  bool normalize = false;
  std::vector<std::string> labels{};  // classes of a classifier, in the order of its logits
  std::string weight_format;          // "fp32"
  std::string device;                 // "cpu (AVX2, 3 threads)", "cuda:0 (NVIDIA H100)"
};

// What a device says of itself, for metrics.
struct DeviceStats {
  int64_t memory_total = 0;  // bytes
  int64_t memory_used = 0;   // by all programs; read now and then
  // Of the step that was collected last: its time on the device, copies included, and whether it
  // was one launch of a recorded graph or queued operator by operator.
  double step_seconds = 0;
  bool step_was_graph = false;
};

// In a decode row, instead of a token id: the token that the row's slot sampled last, which a GPU
// knows before its host does.
inline constexpr TokenId kLastSampled = -1;

enum class RowOutput {
  kNone,    // advance the state only (every prompt chunk but the last)
  kLast,    // sample one token from the row's last position; the prompt ends there
  kScore,   // the log-probability of every target (teacher forcing)
  kHidden,  // the vectors behind the last layer and its norm, which the head reads
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
  // kLast: tokens that are not drawn here, beside those that the slot's rules leave out; in the
  // order of ids, each once, at most kMaxRowBans. Where a row has some, or the one before it in its
  // slot had, no other step that names the slot may be uncollected.
  std::vector<TokenId> banned{};
  // kHidden: of so many tokens, the last ones of the row; at least 1.
  int64_t hidden = 0;

  // The position behind its last token.
  int64_t end() const { return first_position + static_cast<int64_t>(tokens.size()); }
};
inline constexpr size_t kMaxRowBans = 256;

// One flat batch. At most one row per slot.
struct StepInput {
  std::vector<StepRow> rows;
};

struct StepOutput {
  // sampled[i] belongs to the i-th row whose output is kLast, in row order. An id of kNoToken means
  // that this row's sequence must end; its neighbours are unharmed.
  std::vector<SampledToken> sampled;
  // scored[i] belongs to the i-th row whose output is kScore: one entry per target, with the
  // target's id, its log-probability and the alternatives that the slot's SamplingParams ask for.
  // An id of kNoToken: the model produced no distribution there; the sequence must end.
  std::vector<std::vector<SampledToken>> scored{};
  // hidden[i] belongs to the i-th row whose output is kHidden: [StepRow::hidden, hidden_width].
  // Where the model overflows they are not finite.
  std::vector<std::vector<float>> hidden{};
};

// A sequence's state beside the slots, in the memory of its runner's device; see
// ModelRunner::KeepSlot. Immutable; may be released on any thread, and after its runner.
class KeptState {
 public:
  virtual ~KeptState() = default;
  virtual int64_t bytes() const = 0;  // of that memory
};

// What a sequence begins from when it gets its slot: nothing; a copy of another slot's sequence,
// which continues beside it; a state that KeepSlot kept; or the bytes of SnapshotSlot.
struct NewSequence {};
struct ForkOf {
  int32_t slot;
};
using StateSource = std::variant<NewSequence, ForkOf, const KeptState*, absl::string_view>;

// How a sequence samples in its slot.
struct SlotTerms {
  SamplingParams sampling{};
  // The index of its next output token. It is not 0 where outputs of the text came before.
  uint64_t output_index = 0;
  // What penalties go by: the tokens that the text has had, each id once. The runner adds those
  // that the sequence consumes and samples. It is read with penalties only.
  absl::Span<const TokenUse> had{};
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

  // To be called first by the thread that makes all later calls: what a device's libraries
  // keep for a thread is made now, and not in its first step. Where that fails, the step says why.
  virtual void PrepareThread() {}

  // Gives `slot` to a sequence that begins from `from`, and returns how many tokens that sequence
  // has consumed: the position of its next row. kLastSampled stands for nothing until it has
  // sampled. A fork of the slot itself puts the sequence that is there under other terms.
  // INVALID_ARGUMENT: the snapshot is damaged or of another model; the slot is as it was. INTERNAL,
  // RESOURCE_EXHAUSTED, UNAVAILABLE as Collect: the slot's state is undefined, and only a new
  // sequence may use it. Only a snapshot is waited for on a GPU, and `had`.
  // REQUIRES: 0 <= slot < slots(); no submitted step that names the slot, or the one that is
  // forked, is uncollected; a kept state is this runner's; ids of `had` are within the vocabulary.
  virtual absl::StatusOr<int64_t> BindSlot(int32_t slot, const StateSource& from,
                                           const SlotTerms& terms) = 0;

  // Keeps what the sequence in `slot` has read. It costs what a fork costs, and a GPU is not waited
  // for. Null: there is no memory for it. REQUIRES: as BindSlot.
  virtual std::shared_ptr<const KeptState> KeepSlot(int32_t slot) = 0;

  // Copies that state into bytes that outlive the process: a header (magic, layout version,
  // fingerprint of the model and its state's layout, position), and what the sequence has written
  // of its state (zeros stand for the rest, whatever the slot held before). Sequences with the same
  // tokens, the same ones of them sampled, have the same bytes where the runner computes the same
  // bits. Empty: the device failed. Throws std::bad_alloc when there is no memory for them.
  // REQUIRES: as BindSlot.
  virtual std::string SnapshotSlot(int32_t slot) const = 0;

  // Steps that may be submitted and not yet collected: 1, or 2 where the device works on one while
  // the host prepares the next.
  virtual int max_steps_in_flight() const { return 1; }

  // Starts a step. A CPU runner may compute inside this call; a GPU runner returns while the device
  // works. Errors: INVALID_ARGUMENT when a row breaks the rules above (slot or token id out of
  // range, slot twice, too many tokens, kLastSampled where nothing was sampled); nothing is
  // computed then. REQUIRES: fewer than max_steps_in_flight() steps are uncollected.
  virtual absl::StatusOr<Ticket> Submit(const StepInput& input) = 0;

  // Waits for the step and replaces what `output` holds, whose memory it uses, by what the step
  // sampled; steps are collected in the order in which they were submitted. After an error the
  // states of the step's slots are undefined: their sequences must end. INTERNAL, and
  // RESOURCE_EXHAUSTED where there is no memory, here or from Submit: the runner itself stays
  // usable. UNAVAILABLE, here or from Submit: its device is lost, and every later step fails
  // likewise.
  virtual absl::Status Collect(Ticket ticket, StepOutput& output) = 0;
};

}  // namespace aft
