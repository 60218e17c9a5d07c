#pragma once

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

// A complete answer. Times are by this side's clock, from the start of the call, and include
// connecting.
struct CallResult {
  std::string request_id;
  std::chrono::nanoseconds time_to_first_token{0};  // or scores, or vectors; 0: none arrived
  std::chrono::nanoseconds duration{0};
};

// The output of one sequence.
struct GenerateOutput {
  v1::Finished finished;
  std::string text;                 // of all deltas
  std::vector<uint32_t> token_ids;  // of all deltas
};

// The result of a call that is resumed if its stream breaks.
struct ResumableResult : CallResult {
  uint32_t resumes = 0;  // number of resumes, of all sequences together
  bool exact = true;     // Resumed::exact of the last resume, for all sequences
};

// The first sequence. It is the only one without GenerateRequest.n.
struct GenerateResult : ResumableResult, GenerateOutput {
  v1::Started started;
  std::vector<GenerateOutput> others;  // sequences 1 to n - 1
};

// The output of one text.
struct ScoreOutput {
  v1::ScoreFinished finished;
  // One for each of the text's tokens from the second one on.
  std::vector<uint32_t> token_ids;
  std::vector<v1::TokenLogprobs> logprobs;
};

// The first text. It is the only one without ScoreRequest.texts.
struct ScoreResult : ResumableResult, ScoreOutput {
  v1::ScoreStarted started;
  std::vector<ScoreOutput> others;  // all texts except the first
};

struct EncodeOutput {
  v1::EncodeFinished finished;
  std::vector<float> values;  // [count, started.width()], vector after vector
};

// As ScoreResult, for Encode.
struct EncodeResult : CallResult, EncodeOutput {
  v1::EncodeStarted started;
  std::vector<EncodeOutput> others;
};

// Is called for every event of a stream in order, on the thread that made the call. It should be
// quick, because the server holds output back (or gives up) while it runs. Is not called any more
// once the call's token is cancelled. If it throws, the call is cancelled and throws the exception.
template <typename Response>
using EventCallback = std::function<void(const Response&)>;

using HealthStatus = grpc::health::v1::HealthCheckResponse::ServingStatus;

// The servers behind one address. Connects to all of them with the first call. After a loss it
// connects again, first after 0.1 s and then at most 1 s later. Calls go in turn to the servers
// that are reachable and whose health is SERVING (grpc.health.v1, watched). Connections are pinged
// every 20 s while calls run.
//
// A call that is refused before its first message, with UNAVAILABLE, RESOURCE_EXHAUSTED or
// CANCELLED, is sent again, after the time that the server names (`grpc-retry-pushback-ms`) or some
// tenths of a second. If that time is negative, the call is not sent again. The attempts end with
// ClientOptions::max_attempts or the deadline. Calls of ImportState, DeleteState, LoadModel,
// UnloadModel and Health are never sent again.
//
// A generation or scoring that breaks later is resumed, at any of the servers. The application sees
// one stream with one Started (the first), every token once, and one Finished (of each sequence),
// whose timings are those of the last server. If a generation has several sequences, each is
// resumed in a call of its own. The first attempt comes at once, the next ones after 0.1 to 5 s or
// the time that the server names, until ClientOptions::max_resumes or the deadline.
// client/README.md lists the errors that are final. Other calls are not repeated once they have
// begun, because what a broken stream has delivered cannot be taken back.
//
// ListModels, GetModel, LoadModel, UnloadModel and Health also reach servers that are not SERVING.
//
// Errors: the server's status code, a sentence as the message, and ErrorDetails (GetErrorDetails).
// In addition to the codes of inference.proto:
//   UNAVAILABLE       also: not reachable, or the connection broke (ErrorDetails::origin)
//   CANCELLED         the call's token was cancelled
//   DATA_LOSS         the stream lost a part or ended without Finished
//   INVALID_ARGUMENT  also: a request id or token that cannot be sent
//
// Thread-safety: any thread may call any method. Except for StartGenerate, calls block until they
// end, and may run in parallel.
class Client {
 public:
  // INVALID_ARGUMENT for a malformed address or token, and for a certificate without its key or a
  // key without its certificate. Does not connect.
  static absl::StatusOr<std::unique_ptr<Client>> Create(ClientOptions options);

  // Streams a generation to `on_event` (may be empty), and returns the complete result.
  absl::StatusOr<GenerateResult> Generate(const v1::GenerateRequest& request,
                                          const EventCallback<v1::GenerateResponse>& on_event = {},
                                          const CallOptions& call = {});

  // As Generate, but returns at once, and no thread waits. `listener` and this client must live
  // until its OnEnd, which is called unless this returns an error.
  absl::Status StartGenerate(const v1::GenerateRequest& request, GenerateListener& listener,
                             const CallOptions& call = {});

  // As Generate, with one response at the end. If it is lost, it is computed again, like a refused
  // call.
  absl::StatusOr<v1::CompleteResponse> Complete(const v1::GenerateRequest& request,
                                                const CallOptions& call = {});

  // Convert a text to token ids, and token ids to text.
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request,
                                                const CallOptions& call = {});
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request,
                                                    const CallOptions& call = {});

  // Streams the log-probability of every token of a text, or of several texts (ScoreRequest.texts).
  // If the stream breaks, the texts that have not finished are sent again; the application sees
  // every score once.
  absl::StatusOr<ScoreResult> Score(const v1::ScoreRequest& request,
                                    const EventCallback<v1::ScoreResponse>& on_event = {},
                                    const CallOptions& call = {});

  // Streams the vectors of a text, or of several texts.
  absl::StatusOr<EncodeResult> Encode(const v1::EncodeRequest& request,
                                      const EventCallback<v1::EncodeResponse>& on_event = {},
                                      const CallOptions& call = {});

  // A request of the Open Inference Protocol (server/api/oip/README.md): tensors in, tensors
  // out.
  absl::StatusOr<inference::ModelInferResponse> Infer(const inference::ModelInferRequest& request,
                                                      const CallOptions& call = {});

  // The states that requests with `store` have stored. NOT_FOUND if the state is gone or belongs to
  // another client. With several servers behind the address, these calls may reach another server,
  // which has the state only if the servers share a Redis.
  absl::StatusOr<v1::State> GetState(absl::string_view id, const CallOptions& call = {});
  absl::StatusOr<std::vector<v1::State>> ListStates(const CallOptions& call = {});
  absl::Status DeleteState(absl::string_view id, const CallOptions& call = {});

  // Export a state as bytes, and import such bytes for a model of that name. Import works on the
  // server that exported the state, and on servers with the same keys (states.key_files).
  // INVALID_ARGUMENT if these are no such bytes.
  absl::StatusOr<std::string> ExportState(absl::string_view id, const CallOptions& call = {});
  absl::StatusOr<v1::State> ImportState(absl::string_view model, absl::string_view bytes,
                                        const CallOptions& call = {});

  absl::StatusOr<v1::ListResponse> ListModels(const CallOptions& call = {});

  // An empty version means the one that serves requests without a version. NOT_FOUND names the
  // existing models or versions.
  absl::StatusOr<v1::Model> GetModel(absl::string_view name, absl::string_view version = "",
                                     const CallOptions& call = {});

  // Make the server load the newest versions of a model of its repository, or unload the model.
  // They return when that is done; it also completes if the call ends earlier. With several servers
  // behind the address, one of them gets the call. PERMISSION_DENIED if this client may not do it.
  absl::Status LoadModel(absl::string_view name, const CallOptions& call = {});
  absl::Status UnloadModel(absl::string_view name, const CallOptions& call = {});

  // grpc.health.v1. An empty service means the whole server. NOT_FOUND if there is no such service.
  absl::StatusOr<HealthStatus> Health(absl::string_view service = "", const CallOptions& call = {});

  // Connects in advance, so that no call has to wait. Returns false if no server was SERVING within
  // `timeout`.
  bool WaitForServer(std::chrono::milliseconds timeout);

 private:
  explicit Client(ClientOptions options);

  const ClientOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;  // only to servers that are SERVING
  const std::shared_ptr<grpc::Channel> any_channel_;
};

}  // namespace aft::client
