#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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

// The requests and results of an engine, as plain values: no gRPC, no protobuf.
namespace aft::server {

// Names an accepted request.
using RequestHandle = uint64_t;

struct StopConditions {
  // At least 1; or 0 with GenerationRequest::prompt_scores, so that the prompt is only scored.
  int32_t max_tokens = 0;
  std::vector<std::string> strings;
  std::vector<TokenId> token_ids;
  bool include_stop_string = false;
  bool ignore_eos = false;
  // Within the first min_tokens tokens no stop string counts, and tokens that would end the output
  // are not drawn (LogitRule::ends). At most max_tokens.
  int32_t min_tokens = 0;
};

class Reservation;

// The fields that every request has.
struct RequestHeader {
  Method method = Method::kGenerate;      // label of its metrics; one that has an engine
  std::string id;                         // for logs and error messages
  std::string trace_id;                   // for logs
  TimePoint arrival;                      // when the RPC arrived, before tokenising
  TimePoint deadline = TimePoint::max();  // the client's
  std::shared_ptr<const Client> client = AnonymousClient();  // never null
  // The user for whom the client sends the request, if the client shares its turns by user; "" if
  // the request names none.
  std::string user{};
  ServiceClass service_class = ServiceClass::kNormal;
  std::shared_ptr<Reservation> reservation;  // its place in the engine, if it has one already
};

// A request whose text may continue the text of an earlier request, and whose own text a later
// request may continue.
struct TurnRequest : RequestHeader {
  std::shared_ptr<const SequenceState> previous;  // null: the text begins here
  bool store = false;                             // the caller wants Outcome::turn

  // The number of tokens of all turns before.
  int64_t tokens_before() const { return previous != nullptr ? previous->tokens : 0; }
  // The uses of each token in all turns before.
  absl::Span<const TokenUse> uses_before() const {
    return previous != nullptr ? previous->had : absl::Span<const TokenUse>();
  }
};

// A validated generation request.
struct GenerationRequest : TurnRequest {
  // Tokens of the vocabulary; at least one, unless `previous` has a pending token. If the request
  // resumes a stream, the last `resumed` tokens are the output of the stream so far.
  std::vector<TokenId> prompt;
  size_t resumed = 0;
  // A state of the text that consists of the text before, the prompt and the output, or of a
  // beginning of that text. Its tokens are not read again. Null: there is none. REQUIRES: IsWithin
  // (resumption.h).
  std::shared_ptr<const SequenceState> start;
  Survival survival;
  SamplingParams sampling;
  StopConditions stop;
  std::shared_ptr<const TokenSequences> bad_words;  // never in the output; null: none
  std::string cache_salt;  // only requests of the client with the same salt share prefixes
  // Whether the caller wants the log-probabilities of the prompt's tokens, as ScoreTexts gives
  // them, with sampling.top_logprobs alternatives. All come before the first token of the output. A
  // resumed stream that has output has received them already. Such a prompt does not use the prefix
  // cache.
  bool prompt_scores = false;

  // The most tokens that its output can have, with those that it resumes. `max_seq_len`: as in
  // ModelInfo.
  int64_t max_outputs(int64_t max_seq_len) const {
    if (max_seq_len == 0) return stop.max_tokens;
    const int64_t before = tokens_before() + static_cast<int64_t>(prompt.size() - resumed);
    return std::min<int64_t>(stop.max_tokens, std::max<int64_t>(max_seq_len - before, 0));
  }
};

// A validated request for the log-probabilities of a text.
struct ScoringRequest : TurnRequest {
  std::vector<TokenId> text;  // at least one token, all within the vocabulary
  int32_t top_logprobs = 0;   // alternatives reported for each token
  // If the request resumes a stream: the number of scores that its client has, and their sum. The
  // tokens of these scores are read, but not scored again.
  int64_t scored = 0;
  double logprob = 0;
  Survival survival{};
  // The number of first tokens that are only read, with the prefix cache; 0: the cache is not used.
  int64_t context = 0;
  std::string cache_salt{};  // as in GenerationRequest

  // The number of scores of a text of `tokens`: one for each token that follows another one and is
  // not part of the context.
  int64_t scores(int64_t tokens) const {
    const bool pending = previous != nullptr && previous->pending != kNoToken;
    return tokens - std::max<int64_t>(context, pending ? 0 : 1);
  }
};

// A validated request for the vectors of a sequence. Its input is a text as ScoringRequest::text,
// or vectors, for which the answer need not be finite.
struct EncodingRequest : RequestHeader, EncoderInput {
  Pooling pooling = Pooling::kNone;
  bool normalize = false;  // to Euclidean length 1
  // One entry for each token, or empty: 1 if the token has a vector. Without one (0) its vector is
  // zeros, and pooling leaves it out. At least one token has a vector.
  std::vector<uint8_t> kept{};
};

// The tokens that a step added to one sequence: generated tokens, or scored tokens of the text.
struct TokenDelta {
  uint32_t first_index = 0;  // position of tokens[0] in the output, or in the scored text
  bool of_prompt = false;    // these are scored tokens of a generation's own prompt
  // Empty if the last delta has only text that was held back until the end was known.
  absl::InlinedVector<SampledToken, 1> tokens;
  // The text of generated tokens. Valid UTF-8; may be empty while a character is incomplete.
  std::string text;
};

// kDone: the whole text was scored or encoded.
enum class FinishReason { kEos, kStop, kLength, kDone };
inline constexpr std::array<const char*, 4> kFinishReasonNames = {"eos", "stop", "length", "done"};

// Why a prompt found no kept state to continue from. kNone: it found one, or did not look for one.
enum class CacheMiss { kNone, kCold, kTooShort, kDiverged, kEvicted };
inline constexpr std::array<const char*, 5> kCacheMissNames = {"", "cold", "too_short", "diverged",
                                                               "evicted"};

struct Usage {
  uint32_t prompt_tokens = 0;  // or tokens of the text that was scored or encoded
  // The tokens of the output, without the end-of-text or stop token that ended it.
  uint32_t generated_tokens = 0;
  uint32_t scored_tokens = 0;   // scored tokens of the text, or of a generation's prompt
  uint32_t resumed_tokens = 0;  // output and scores that came with the request
  // The number of prompt tokens that were not read, because a state after them was kept. If it is
  // 0, cache_miss says why. With kDiverged, diverged_at is the index of the first token that
  // differs from all known texts.
  uint32_t cached_tokens = 0;
  CacheMiss cache_miss = CacheMiss::kNone;
  uint32_t diverged_at = 0;
};

// Times since RequestHeader::arrival. Zero: it did not happen.
struct Timings {
  // Until the first step with the request, or until its end if there was no such step.
  Duration queue{};
  Duration first_token{};  // until the first generated or scored tokens
  Duration total{};
};

// The phases of a request after its wait (Timings::queue), one after the other.
struct Phases {
  explicit Phases(const Timings& timings) {
    if (timings.first_token == Duration(0)) return;  // there was no token
    prefill = timings.first_token - timings.queue;
    decode = timings.total - timings.first_token;
  }

  Duration prefill{};  // from the first step with the request to its first tokens
  Duration decode{};   // from its first tokens to its end
};

// The one terminal event of a request.
struct Outcome {
  // OK: `reason` says why the request ended. Else CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE
  // (shutdown), RESOURCE_EXHAUSTED (slow client, or NoMemory), ABORTED (its call has failed, or
  // another request of its call) or INTERNAL.
  absl::Status status;
  FinishReason reason = FinishReason::kLength;
  std::string stop_string;     // set when reason is kStop by a string
  TokenId stop_token_id = -1;  // set when reason is kStop by a token
  std::string limit;           // set when reason is kLength: which limit, e.g. "stop.max_tokens=64"
  double logprob = 0;          // sum over the scored tokens, natural logarithm
  uint64_t scored_bytes = 0;   // the bytes of the scored tokens
  uint32_t batch_rows = 0;     // texts in the step that encoded this one
  // The number of tokens that this engine read, generated or encoded for the request. Tokens of a
  // restored state do not count.
  uint64_t computed_tokens = 0;
  // Set if a drain has ended a resumable stream that leaves a resume point.
  std::shared_ptr<ResumePoint> hand_over;
  std::shared_ptr<TurnEnd> turn;  // set when the request has `store`, and `status` is OK
  // The stop or end-of-text token that ended the output, of which it is not a part.
  std::optional<SampledToken> end_token;
  Usage usage;
  Timings timings;
};

// How busy an engine is.
struct EngineLoad {
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t slots = 0;          // the number of requests that can run at once
  Duration oldest_waiting{};  // the wait of the request that has waited longest; 0: none waits
  Duration since_step{};      // since the last step was done, or the engine was made
};

// Receives the events of one request. The engine thread makes all calls. If the model fails, the
// thread that noticed the failure may call OnFinished instead. The functions must not block, throw
// or call the engine's Shutdown.
class FinishSink {
 public:
  virtual ~FinishSink() = default;

  // The request has left the queue, and its first step begins. Is called before any part.
  virtual void OnStarted() {}

  // Is called last, and exactly once, for every request that an engine accepted.
  virtual void OnFinished(const Outcome& outcome) = 0;
};

// Receives the answer to one request, part by part.
template <typename Part>
class Sink : public FinishSink {
 public:
  // Takes the next part. If it returns an error because the reader is too slow, or NoMemory, the
  // request ends with that error at once.
  virtual absl::Status OnPart(Part part) = 0;
};

// A part of a generation or a scoring is the tokens of one step.
using TokenSink = Sink<TokenDelta>;
// A text to encode has one part: all vectors that were asked for, one after the other.
using VectorSink = Sink<std::vector<float>>;

}  // namespace aft::server
