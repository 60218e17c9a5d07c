#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "model/api/encoder_runner.h"
#include "model/api/pooling.h"
#include "model/api/sampling_params.h"
#include "server/config/client.h"
#include "server/engine/resume_point.h"
#include "server/engine/sequence_bans.h"
#include "server/engine/sequence_state.h"
#include "server/observability/methods.h"
#include "server/scheduling/service_class.h"
#include "server/scheduling/time.h"

// What goes into an engine and what comes out, as plain values: no gRPC, no protobuf.
namespace aft::server {

// Names an accepted request.
using RequestHandle = uint64_t;

struct StopConditions {
  int32_t max_tokens = 0;  // at least 1
  std::vector<std::string> strings;
  std::vector<TokenId> token_ids;
  bool include_stop_string = false;
  bool ignore_eos = false;
  // Before so many no stop string counts; tokens that would end the output are not drawn
  // (LogitRule::ends). At most max_tokens.
  int32_t min_tokens = 0;
};

class Reservation;

// What every request carries.
struct RequestHeader {
  Method method = Method::kGenerate;      // label of its metrics; one that has an engine
  std::string id;                         // for logs and error messages
  std::string trace_id;                   // for logs
  TimePoint arrival;                      // when the RPC arrived, before tokenising
  TimePoint deadline = TimePoint::max();  // the client's
  std::shared_ptr<const Client> client = AnonymousClient();  // never null
  ServiceClass service_class = ServiceClass::kNormal;
  std::shared_ptr<Reservation> reservation;  // its place in the engine, if it has one already
};

// A request whose text may go on from another one's, and whose own may be gone on from.
struct TurnRequest : RequestHeader {
  std::shared_ptr<const SequenceState> previous;  // null: the text begins here
  bool store = false;                             // Outcome::turn is wanted

  // Tokens of all turns before.
  int64_t tokens_before() const { return previous != nullptr ? previous->tokens : 0; }
  // What they have of each token.
  absl::Span<const TokenUse> uses_before() const {
    return previous != nullptr ? previous->had : absl::Span<const TokenUse>();
  }
};

// A validated generation request.
struct GenerationRequest : TurnRequest {
  // All within the vocabulary. At least one token, or previous has a pending one. Behind it, of a
  // stream that goes on, its output so far: the last `resumed` tokens.
  std::vector<TokenId> prompt;
  size_t resumed = 0;
  // A state of the text before, the prompt and the output, or of as much of it as that had: what is
  // in it is not read again; null: there is none. REQUIRES: IsWithin (resumption.h).
  std::shared_ptr<const SequenceState> start;
  Survival survival;
  SamplingParams sampling;
  StopConditions stop;
  std::shared_ptr<const TokenSequences> bad_words;  // that the output never has; null: none
  std::string cache_salt;  // prefixes are shared by the client's requests with the same one
};

// A validated request for the log-probabilities of a text.
struct ScoringRequest : TurnRequest {
  std::vector<TokenId> text;  // at least one token, all within the vocabulary
  int32_t top_logprobs = 0;   // alternatives reported for each token
  // Of a stream that goes on: scores that its client has, and their sum. These tokens are read and
  // not scored again.
  int64_t scored = 0;
  double logprob = 0;
  Survival survival{};
  // First tokens of the text that are read only, over the prefix cache; 0: it takes no part.
  int64_t context = 0;
  std::string cache_salt{};  // as in GenerationRequest

  // That a text of so many tokens has: one of each token that follows another one, and is none of
  // the context.
  int64_t scores(int64_t tokens) const {
    const bool pending = previous != nullptr && previous->pending != kNoToken;
    return tokens - std::max<int64_t>(context, pending ? 0 : 1);
  }
};

// A validated request for the vectors of a sequence: of a text as ScoringRequest::text, or of
// vectors, whose answer need not be finite.
struct EncodingRequest : RequestHeader, EncoderInput {
  Pooling pooling = Pooling::kNone;
  bool normalize = false;  // to Euclidean length 1
  // Of each token, or empty: whether it has a vector (1); without one it is zeros (0), and pooling
  // leaves it out. One token at least has one.
  std::vector<uint8_t> kept{};
};

// Tokens that a step added to one sequence: generated ones, or scored ones of the text.
struct TokenDelta {
  uint32_t first_index = 0;  // position of tokens[0] in the output, or in the scored text
  // Empty in a last delta that only brings text which was held back until the end was known.
  absl::InlinedVector<SampledToken, 1> tokens;
  // Of generated tokens. Valid UTF-8; may be empty while a character is incomplete.
  std::string text;
};

// kDone: the whole text was scored or encoded.
enum class FinishReason { kEos, kStop, kLength, kDone };
inline constexpr std::array<const char*, 4> kFinishReasonNames = {"eos", "stop", "length", "done"};

// Why no state was kept that a prompt could go on from. kNone: there was one, or it takes no part.
enum class CacheMiss { kNone, kCold, kTooShort, kDiverged, kEvicted };
inline constexpr std::array<const char*, 5> kCacheMissNames = {"", "cold", "too_short", "diverged",
                                                               "evicted"};

struct Usage {
  uint32_t prompt_tokens = 0;  // or tokens of the text that was scored or encoded
  // Of the output: without the end-of-text or stop token that ended it.
  uint32_t generated_tokens = 0;
  uint32_t scored_tokens = 0;
  uint32_t resumed_tokens = 0;  // of the output or the scores, those that the request brought
  // Of the prompt, those that were not read, because the state behind them was kept; why there are
  // none; and with kDiverged the first one where the prompt leaves what is known.
  uint32_t cached_tokens = 0;
  CacheMiss cache_miss = CacheMiss::kNone;
  uint32_t diverged_at = 0;
};

// From RequestHeader::arrival. Zero: it never came to that.
struct Timings {
  Duration queue{};        // until the first step that held the request, or its end without one
  Duration first_token{};  // or first scored tokens
  Duration total{};
};

// The same as what follows on what: the wait is Timings::queue.
struct Phases {
  explicit Phases(const Timings& timings) {
    if (timings.first_token == Duration(0)) return;  // it came to no token
    prefill = timings.first_token - timings.queue;
    decode = timings.total - timings.first_token;
  }

  Duration prefill{};  // from the first step that held the request to its first tokens
  Duration decode{};   // from there to its end
};

// The one terminal event of a request.
struct Outcome {
  // OK: `reason` says why the request ended. Else CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE
  // (shutdown), RESOURCE_EXHAUSTED (slow client, or no memory) or INTERNAL.
  absl::Status status;
  bool no_memory = false;  // the server has none for its state: RESOURCE_EXHAUSTED
  FinishReason reason = FinishReason::kLength;
  std::string stop_string;     // set when reason is kStop by a string
  TokenId stop_token_id = -1;  // set when reason is kStop by a token
  std::string limit;           // set when reason is kLength: which limit, e.g. "stop.max_tokens=64"
  double logprob = 0;          // sum over the scored tokens, natural logarithm
  uint64_t scored_bytes = 0;   // that these tokens stand for
  uint32_t batch_rows = 0;     // texts in the step that encoded this one
  // That were read, generated or encoded for it, here: without those that a state had, or that the
  // request brought and nobody read.
  uint64_t computed_tokens = 0;
  // A resumable stream, which a drain has ended and that leaves something behind.
  std::shared_ptr<ResumePoint> hand_over;
  std::shared_ptr<TurnEnd> turn;  // set when the request was to store it, and `status` is OK
  Usage usage;
  Timings timings;
};

// Requests that an engine has.
struct EngineLoad {
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t slots = 0;          // that can run at once
  Duration oldest_waiting{};  // how long the one that waits for longest has; 0: none does
  Duration since_step{};      // since the last step was done, or since there is an engine
};

// Learns how one request went. Calls of sinks come from the engine thread and must not block,
// throw or call back into the engine's Shutdown.
class FinishSink {
 public:
  virtual ~FinishSink() = default;

  // Before any part: the request has left the queue, the first step that holds it begins.
  virtual void OnStarted() {}

  // Exactly once, last, for every request that an engine accepted.
  virtual void OnFinished(const Outcome& outcome) = 0;
};

// Where the answer to one request goes, part by part.
template <typename Part>
class Sink : public FinishSink {
 public:
  // An error, because the reader is too slow, ends the request with it at once.
  virtual absl::Status OnPart(Part part) = 0;
};

// Of a generation or a scoring: the tokens of one step.
using TokenSink = Sink<TokenDelta>;
// Of a text to encode: one part with all that was asked for, vector after vector.
using VectorSink = Sink<std::vector<float>>;

}  // namespace aft::server
