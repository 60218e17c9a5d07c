#pragma once

#include <grpcpp/support/channel_arguments.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"
#include "aft/v1/models.pb.h"
#include "aft/v1/states.pb.h"
#include "client/lib/call_options.h"
#include "client/lib/cancel_token.h"
#include "client/lib/error_details.h"
#include "client/lib/generate_listener.h"
#include "grpc/health/v1/health.pb.h"
#include "inference/grpc_service.pb.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace aft::client {

// A whole answer. Times are on this side's clock, from the start of the call, connecting included.
struct CallResult {
  std::string request_id;
  std::chrono::nanoseconds time_to_first_token{0};  // or scores, or vectors; 0: there was none
  std::chrono::nanoseconds duration{0};
};

// What came of one sequence.
struct GenerateOutput {
  v1::Finished finished;
  std::string text;                 // of all deltas
  std::vector<uint32_t> token_ids;  // of all deltas
};

// Of a call that goes on when its stream breaks.
struct ResumableResult : CallResult {
  uint32_t resumes = 0;  // how often it did, of all sequences
  bool exact = true;     // Resumed::exact, of the last time; of all sequences
};

// The first sequence, and all that there is without GenerateRequest.n.
struct GenerateResult : ResumableResult, GenerateOutput {
  v1::Started started;
  std::vector<GenerateOutput> others;  // sequences 1 to n - 1
};

// What came of one text.
struct ScoreOutput {
  v1::ScoreFinished finished;
  // Of the text's tokens from the second on, one each.
  std::vector<uint32_t> token_ids;
  std::vector<v1::TokenLogprobs> logprobs;
};

// The first text, and all that there is without ScoreRequest.texts.
struct ScoreResult : ResumableResult, ScoreOutput {
  v1::ScoreStarted started;
  std::vector<ScoreOutput> others;  // texts 1 and on
};

struct EncodeOutput {
  v1::EncodeFinished finished;
  std::vector<float> values;  // [count, started.width()], vector after vector
};

// As ScoreResult.
struct EncodeResult : CallResult, EncodeOutput {
  v1::EncodeStarted started;
  std::vector<EncodeOutput> others;
};

// What the client asks of its channel: what `options` say, and defaults for the rest.
grpc::ChannelArguments MakeChannelArgs(const ClientOptions& options);

// How gRPC is to balance, watch health and retry, as its JSON.
std::string MakeServiceConfig(const ClientOptions& options);

// Called for every event of a stream in order, on the thread that made the call; it should be
// quick, for the server holds output back (or gives up) while it runs. Not called again once the
// call's token is cancelled.
template <typename Response>
using EventCallback = std::function<void(const Response&)>;

using HealthStatus = grpc::health::v1::HealthCheckResponse::ServingStatus;

// The servers behind one address. Connects to all of them with the first call, and again after a
// loss, 0.1 s later at first and at most 1 s. Calls go to those in turn that are reachable and
// whose health is SERVING (grpc.health.v1, watched). A call that is refused before its first
// message, with UNAVAILABLE, RESOURCE_EXHAUSTED or CANCELLED, is sent again: after the time that
// the server names (`grpc-retry-pushback-ms`; not at all when that is negative) or some tenths of a
// second, until ClientOptions::max_attempts or the deadline. A generation or scoring that
// breaks after that goes on, at any of the servers: the application sees one stream, with one
// Started (the first), every token once and one Finished (of each sequence), whose timings are the
// last server's. Of a generation with several sequences, each goes on in a call of its own. It goes
// on at once, then after 0.1 to 5 s or what the server names, until ClientOptions::max_resumes or
// the deadline; which errors end it all the same is in client/README.md. What else has begun is not
// repeated, because what a broken stream has delivered cannot be taken back. Connections are pinged
// every 20 s while calls run.
//
// ListModels, GetModel, LoadModel, UnloadModel and Health reach servers that do not serve as well.
//
// Errors: the server's status code with a sentence as its message, and ErrorDetails
// (GetErrorDetails). Beside the codes of inference.proto:
//   UNAVAILABLE       also: not reachable, or the connection broke (ErrorDetails::origin)
//   CANCELLED         the call's token was cancelled
//   DATA_LOSS         the stream lost a part or ended without Finished
//   INVALID_ARGUMENT  also: a request id or token that cannot be sent
//
// Thread-safety: any thread may call any method; calls but StartGenerate block until they end, side
// by side.
class Client {
 public:
  // INVALID_ARGUMENT for a malformed address. Does not connect.
  static absl::StatusOr<std::unique_ptr<Client>> Create(ClientOptions options);

  // Streams a generation to `on_event` (may be empty) and returns the whole of it.
  absl::StatusOr<GenerateResult> Generate(const v1::GenerateRequest& request,
                                          const EventCallback<v1::GenerateResponse>& on_event = {},
                                          const CallOptions& call = {});

  // The same without a thread that waits: returns at once. `listener` must live until its OnEnd,
  // which comes unless this returns an error.
  absl::Status StartGenerate(const v1::GenerateRequest& request, GenerateListener& listener,
                             const CallOptions& call = {});

  // The same as one response, for callers that want nothing before the end. One that is lost is
  // computed again, as a refusal is.
  absl::StatusOr<v1::CompleteResponse> Complete(const v1::GenerateRequest& request,
                                                const CallOptions& call = {});

  // A text as ids, and ids as text.
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request,
                                                const CallOptions& call = {});
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request,
                                                    const CallOptions& call = {});

  // The log-probability of every token of a text, or of several (ScoreRequest.texts), likewise. Of
  // several, those that have not finished when the stream breaks are asked for again; the
  // application sees every score once.
  absl::StatusOr<ScoreResult> Score(const v1::ScoreRequest& request,
                                    const EventCallback<v1::ScoreResponse>& on_event = {},
                                    const CallOptions& call = {});

  // The vectors of a text, or of several, likewise.
  absl::StatusOr<EncodeResult> Encode(const v1::EncodeRequest& request,
                                      const EventCallback<v1::EncodeResponse>& on_event = {},
                                      const CallOptions& call = {});

  // A request of the Open Inference Protocol (server/api/oip/README.md): tensors in, tensors
  // out.
  absl::StatusOr<inference::ModelInferResponse> Infer(const inference::ModelInferRequest& request,
                                                      const CallOptions& call = {});

  // What requests with `store` have left behind; NOT_FOUND: it is gone, or somebody else's. With
  // several servers behind the address these calls may reach another one, which has the state only
  // where they share a Redis.
  absl::StatusOr<v1::State> GetState(absl::string_view id, const CallOptions& call = {});
  absl::StatusOr<std::vector<v1::State>> ListStates(const CallOptions& call = {});
  absl::Status DeleteState(absl::string_view id, const CallOptions& call = {});

  // The state as bytes, and a state of such bytes, for a model of that name: on the server that
  // exported it, or on one with the same keys (states.key_files). INVALID_ARGUMENT: no such bytes.
  absl::StatusOr<std::string> ExportState(absl::string_view id, const CallOptions& call = {});
  absl::StatusOr<v1::State> ImportState(absl::string_view model, absl::string_view bytes,
                                        const CallOptions& call = {});

  absl::StatusOr<v1::ListResponse> ListModels(const CallOptions& call = {});

  // NOT_FOUND names the models there are.
  absl::StatusOr<v1::Model> GetModel(absl::string_view name, const CallOptions& call = {});

  // Have the server load the newest versions of a model of its repository, or let it go; return
  // when that is done, and it goes on when they do not wait for it. Of the server that the address
  // names: with several, any of them hears it. PERMISSION_DENIED: it is not for this client.
  absl::Status LoadModel(absl::string_view name, const CallOptions& call = {});
  absl::Status UnloadModel(absl::string_view name, const CallOptions& call = {});

  // grpc.health.v1; an empty service asks for the whole server. NOT_FOUND: no such service.
  absl::StatusOr<HealthStatus> Health(absl::string_view service = "", const CallOptions& call = {});

  // Connects, so that no call has to wait for that. False: no server served within `timeout`.
  bool WaitForServer(std::chrono::milliseconds timeout);

 private:
  explicit Client(ClientOptions options);

  const ClientOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;  // to servers that serve
  const std::shared_ptr<grpc::Channel> any_channel_;
};

}  // namespace aft::client
