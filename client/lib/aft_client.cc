#include "client/lib/aft_client.h"

#include <grpcpp/grpcpp.h>

#include <thread>
#include <utility>
#include <variant>

#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "aft/v1/inference.grpc.pb.h"
#include "aft/v1/models.grpc.pb.h"
#include "aft/v1/states.grpc.pb.h"
#include "base/status_macros.h"
#include "client/lib/address.h"
#include "client/lib/call.h"
#include "client/lib/channel.h"
#include "client/lib/event_relay.h"
#include "client/lib/generate_stream.h"
#include "client/lib/generation.h"
#include "client/lib/rpc_error.h"
#include "client/lib/scoring.h"
#include "client/lib/stream_checker.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "inference/grpc_service.grpc.pb.h"

namespace aft::client {
namespace {

using Clock = std::chrono::steady_clock;

// The part of `result` that collects the sequence or text `number`.
template <typename Output, typename Result>
Output& OutputOf(uint32_t number, Result& result) {
  if (number > result.others.size()) result.others.resize(number);
  return number == 0 ? result : result.others[size_t{number} - 1];
}

// Add one event of the stream to the result so far.
void Append(const v1::GenerateResponse& event, GenerateResult& result) {
  const v1::Delta& delta = event.delta();
  if (event.has_started()) result.started = event.started();
  auto& output = OutputOf<GenerateOutput>(event.sequence(), result);
  if (event.has_finished()) output.finished = event.finished();
  output.text += delta.text();
  output.token_ids.insert(output.token_ids.end(), delta.token_ids().begin(),
                          delta.token_ids().end());
}

bool HasPart(const v1::GenerateResponse& event) { return !event.delta().token_ids().empty(); }

void Append(const v1::ScoreResponse& event, ScoreResult& result) {
  const v1::ScoreChunk& chunk = event.chunk();
  if (event.has_started()) result.started = event.started();
  auto& output = OutputOf<ScoreOutput>(event.index(), result);
  if (event.has_finished()) output.finished = event.finished();
  output.token_ids.insert(output.token_ids.end(), chunk.token_ids().begin(),
                          chunk.token_ids().end());
  output.logprobs.insert(output.logprobs.end(), chunk.logprobs().begin(), chunk.logprobs().end());
}

bool HasPart(const v1::ScoreResponse& event) { return !event.chunk().token_ids().empty(); }

void Append(const v1::EncodeResponse& event, EncodeResult& result) {
  if (event.has_started()) result.started = event.started();
  auto& output = OutputOf<EncodeOutput>(event.index(), result);
  if (event.has_finished()) output.finished = event.finished();
  const auto& values = event.vectors().values();
  output.values.insert(output.values.end(), values.begin(), values.end());
}

// Makes a streaming call with `texts` texts. `rpc(context)` starts the call.
template <typename Result, typename Response, typename Rpc>
absl::StatusOr<Result> Stream(const ClientOptions& client, const CallOptions& options, int texts,
                              const EventCallback<Response>& on_event, const Rpc& rpc) {
  Call call;
  AFT_RETURN_IF_ERROR(call.Prepare(client, options));
  const CancelScope cancel_scope(options.cancel, call.context);

  const auto start = Clock::now();
  const auto reader = rpc(&call.context);
  Result result;
  StreamChecker checker;
  checker.ExpectSequences(static_cast<uint32_t>(texts));
  std::string broken;
  Response event;
  while (broken.empty() && reader->Read(&event)) {
    // Events that arrive after the caller has cancelled are not delivered.
    if (IsCancelled(options)) continue;
    const bool had_none = checker.received() == 0;
    broken = checker.Take(event);
    if (!broken.empty()) {
      call.context.TryCancel();
      break;
    }
    if (had_none && checker.received() > 0) result.time_to_first_token = Clock::now() - start;
    Append(event, result);
    if (on_event) on_event(event);
  }
  const grpc::Status status = reader->Finish();

  call.facts.cancelled = IsCancelled(options);
  call.facts.started = checker.started();
  call.facts.received_tokens = checker.received();
  AFT_RETURN_IF_ERROR(call.StreamStatus(status, checker.finished(), broken));
  result.request_id = RequestId(call.context);
  result.duration = Clock::now() - start;
  return result;
}

// Waits for `time`, or until the token is cancelled.
void Wait(std::chrono::milliseconds time, const CancelToken* cancel) {
  if (cancel == nullptr) {
    std::this_thread::sleep_for(time);
  } else {
    cancel->WaitFor(time);
  }
}

// Delivers the events of a generation or scoring to the application, and collects the result.
template <typename Result, typename Response>
class Hearing {
 public:
  explicit Hearing(const EventCallback<Response>& on_event) : on_event_(on_event) {}

  void OnEvent(const Response& event) {
    Append(event, result_);
    if (result_.time_to_first_token.count() == 0 && HasPart(event)) {
      result_.time_to_first_token = Clock::now() - start_;
    }
    if (on_event_) on_event_(event);
  }
  Result Take(const std::string& request_id, uint32_t resumes, bool exact) {
    result_.request_id = request_id;
    result_.resumes = resumes;
    result_.exact = exact;
    result_.duration = Clock::now() - start_;
    return std::move(result_);
  }

 private:
  const EventCallback<Response>& on_event_;
  const Clock::time_point start_ = Clock::now();
  Result result_;
};

// Makes one call after another until `stream` (Generation, Scoring) has ended. `rpc(context,
// request)` starts a call.
template <typename Result, typename Stream, typename Response, typename Rpc>
absl::StatusOr<Result> Follow(Stream stream, const EventCallback<Response>& on_event,
                              const CallOptions& options, const Rpc& rpc) {
  Hearing<Result, Response> hearing(on_event);
  while (true) {
    Call call;
    AFT_RETURN_IF_ERROR(stream.Prepare(call));
    const CancelScope cancel_scope(options.cancel, call.context);
    const auto reader = rpc(&call.context, stream.request());
    Response event;
    while (reader->Read(&event)) {
      // Events that arrive after the caller has cancelled are not delivered.
      if (IsCancelled(options)) continue;
      const Resumable::Verdict verdict = stream.Take(event);
      if (verdict == Resumable::Verdict::kBroken) {
        call.context.TryCancel();
        break;
      }
      if (verdict == Resumable::Verdict::kDeliver) hearing.OnEvent(event);
    }
    const auto pause = stream.End(reader->Finish(), call);
    if (!pause) {
      AFT_RETURN_IF_ERROR(stream.status());
      return hearing.Take(RequestId(call.context), stream.resumes(), stream.exact());
    }
    Wait(*pause, options.cancel);
  }
}

// Generates several sequences. After a break, they continue in parallel calls.
absl::StatusOr<GenerateResult> GenerateSeveral(const ClientOptions& client,
                                               std::unique_ptr<v1::InferenceService::Stub> stub,
                                               const v1::GenerateRequest& request,
                                               const EventCallback<v1::GenerateResponse>& on_event,
                                               const CallOptions& options) {
  Hearing<GenerateResult, v1::GenerateResponse> hearing(on_event);
  EventRelay relay;
  GenerateStream::Summary summary;
  CancelToken stop;
  const CancelScope cancel_scope(options.cancel, [&stop] { stop.Cancel(); });
  CallOptions relayed = options;
  relayed.cancel = &stop;
  relayed.on_resuming = [&relay](const Resuming& resuming) { relay.OnResuming(resuming); };
  relayed.on_resumed = [&relay](const Resumed& resumed) { relay.OnResumed(resumed); };
  AFT_RETURN_IF_ERROR(
      GenerateStream::Start(client, std::move(stub), request, relay, relayed, &summary));
  bool ended = false;
  // The stream uses these variables until its end. If a callback of the application throws, they
  // must still be there.
  const absl::Cleanup end = [&] {
    stop.Cancel();
    while (!ended) ended = std::holds_alternative<absl::Status>(relay.Take());
  };
  while (true) {
    const EventRelay::Item item = relay.Take();
    if (const auto* const status = std::get_if<absl::Status>(&item)) {
      ended = true;
      AFT_RETURN_IF_ERROR(*status);
      return hearing.Take(summary.request_id, summary.resumes, summary.exact);
    }
    if (IsCancelled(options)) continue;
    if (const auto* const event = std::get_if<v1::GenerateResponse>(&item)) {
      hearing.OnEvent(*event);
    } else if (const auto* const resuming = std::get_if<Resuming>(&item)) {
      if (options.on_resuming) options.on_resuming(*resuming);
    } else if (options.on_resumed) {
      options.on_resumed(std::get<Resumed>(item));
    }
  }
}

// `rpc(context, response)` makes the call.
template <typename Response, typename Rpc>
absl::StatusOr<Response> Unary(const ClientOptions& client, const CallOptions& options,
                               const Rpc& rpc) {
  Call call;
  AFT_RETURN_IF_ERROR(call.Prepare(client, options));
  const CancelScope cancel_scope(options.cancel, call.context);
  Response response;
  const grpc::Status status = rpc(&call.context, &response);
  if (status.ok()) return response;
  call.facts.cancelled = IsCancelled(options);
  return RpcError(status, call.context, call.facts);
}

// Makes a unary call to `method` of a new stub.
template <typename Stub, typename Request, typename Response>
absl::StatusOr<Response> Unary(const ClientOptions& client, const CallOptions& options,
                               const std::unique_ptr<Stub>& stub,
                               grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                            Response*),
                               const Request& request) {
  return Unary<Response>(client, options, [&](grpc::ClientContext* context, Response* response) {
    return ((*stub).*method)(context, request, response);
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Create(ClientOptions options) {
  AFT_RETURN_IF_ERROR(CheckAddress(options.address));
  if (!IsPrintable(options.token)) {
    return CallerError("the token must be printable ASCII without spaces");
  }
  if (options.tls && options.tls->certificate.empty() != options.tls->key.empty()) {
    return CallerError("the client's certificate and its key need each other");
  }
  return absl::WrapUnique(new Client(std::move(options)));
}

Client::Client(ClientOptions options)
    : options_(std::move(options)),
      channel_(MakeChannel(options_, /*watch_health=*/true)),
      any_channel_(MakeChannel(options_, /*watch_health=*/false)) {}

bool Client::WaitForServer(std::chrono::milliseconds timeout) {
  return channel_->WaitForConnected(std::chrono::system_clock::now() + timeout);
}

absl::StatusOr<GenerateResult> Client::Generate(const v1::GenerateRequest& request,
                                                const EventCallback<v1::GenerateResponse>& on_event,
                                                const CallOptions& call) {
  auto stub = v1::InferenceService::NewStub(channel_);
  if (request.n() > 1) return GenerateSeveral(options_, std::move(stub), request, on_event, call);
  return Follow<GenerateResult>(Generation(options_, call, request), on_event, call,
                                [&](grpc::ClientContext* context, const auto& part) {
                                  return stub->Generate(context, part);
                                });
}

absl::Status Client::StartGenerate(const v1::GenerateRequest& request, GenerateListener& listener,
                                   const CallOptions& call) {
  return GenerateStream::Start(options_, v1::InferenceService::NewStub(channel_), request, listener,
                               call);
}

absl::StatusOr<v1::CompleteResponse> Client::Complete(const v1::GenerateRequest& request,
                                                      const CallOptions& call) {
  return Unary(options_, call, v1::InferenceService::NewStub(channel_),
               &v1::InferenceService::Stub::Complete, request);
}

absl::StatusOr<v1::TokenizeResponse> Client::Tokenize(const v1::TokenizeRequest& request,
                                                      const CallOptions& call) {
  return Unary(options_, call, v1::InferenceService::NewStub(channel_),
               &v1::InferenceService::Stub::Tokenize, request);
}

absl::StatusOr<v1::DetokenizeResponse> Client::Detokenize(const v1::DetokenizeRequest& request,
                                                          const CallOptions& call) {
  return Unary(options_, call, v1::InferenceService::NewStub(channel_),
               &v1::InferenceService::Stub::Detokenize, request);
}

absl::StatusOr<ScoreResult> Client::Score(const v1::ScoreRequest& request,
                                          const EventCallback<v1::ScoreResponse>& on_event,
                                          const CallOptions& call) {
  const auto stub = v1::InferenceService::NewStub(channel_);
  return Follow<ScoreResult>(
      Scoring(options_, call, request), on_event, call,
      [&](grpc::ClientContext* context, const auto& part) { return stub->Score(context, part); });
}

absl::StatusOr<EncodeResult> Client::Encode(const v1::EncodeRequest& request,
                                            const EventCallback<v1::EncodeResponse>& on_event,
                                            const CallOptions& call) {
  const auto stub = v1::InferenceService::NewStub(channel_);
  return Stream<EncodeResult>(
      options_, call, request.texts_size(), on_event,
      [&](grpc::ClientContext* context) { return stub->Encode(context, request); });
}

absl::StatusOr<inference::ModelInferResponse> Client::Infer(
    const inference::ModelInferRequest& request, const CallOptions& call) {
  return Unary(options_, call, inference::GRPCInferenceService::NewStub(channel_),
               &inference::GRPCInferenceService::Stub::ModelInfer, request);
}

absl::StatusOr<v1::ListResponse> Client::ListModels(const CallOptions& call) {
  return Unary(options_, call, v1::ModelService::NewStub(any_channel_),
               &v1::ModelService::Stub::List, v1::ListRequest());
}

absl::StatusOr<v1::Model> Client::GetModel(absl::string_view name, absl::string_view version,
                                           const CallOptions& call) {
  v1::GetRequest request;
  request.set_name(std::string(name));
  request.set_version(std::string(version));
  AFT_ASSIGN_OR_RETURN(v1::GetResponse response,
                       Unary(options_, call, v1::ModelService::NewStub(any_channel_),
                             &v1::ModelService::Stub::Get, request));
  return std::move(*response.mutable_model());
}

absl::Status Client::LoadModel(absl::string_view name, const CallOptions& call) {
  inference::RepositoryModelLoadRequest request;
  request.set_model_name(std::string(name));
  return Unary(options_, call, inference::GRPCInferenceService::NewStub(any_channel_),
               &inference::GRPCInferenceService::Stub::RepositoryModelLoad, request)
      .status();
}

absl::Status Client::UnloadModel(absl::string_view name, const CallOptions& call) {
  inference::RepositoryModelUnloadRequest request;
  request.set_model_name(std::string(name));
  return Unary(options_, call, inference::GRPCInferenceService::NewStub(any_channel_),
               &inference::GRPCInferenceService::Stub::RepositoryModelUnload, request)
      .status();
}

absl::StatusOr<v1::State> Client::GetState(absl::string_view id, const CallOptions& call) {
  v1::StateServiceGetRequest request;
  request.set_id(std::string(id));
  AFT_ASSIGN_OR_RETURN(v1::StateServiceGetResponse response,
                       Unary(options_, call, v1::StateService::NewStub(channel_),
                             &v1::StateService::Stub::Get, request));
  return std::move(*response.mutable_state());
}

absl::StatusOr<std::vector<v1::State>> Client::ListStates(const CallOptions& call) {
  std::vector<v1::State> states;
  v1::StateServiceListRequest request;
  while (true) {
    AFT_ASSIGN_OR_RETURN(const v1::StateServiceListResponse response,
                         Unary(options_, call, v1::StateService::NewStub(channel_),
                               &v1::StateService::Stub::List, request));
    if (response.states().empty()) return states;
    states.insert(states.end(), response.states().begin(), response.states().end());
    request.set_after_id(states.back().id());
  }
}

absl::Status Client::DeleteState(absl::string_view id, const CallOptions& call) {
  v1::StateServiceDeleteRequest request;
  request.set_id(std::string(id));
  return Unary<v1::StateServiceDeleteResponse>(options_, call,
                                               [&](grpc::ClientContext* context, auto* out) {
                                                 return v1::StateService::NewStub(channel_)->Delete(
                                                     context, request, out);
                                               })
      .status();
}

absl::StatusOr<std::string> Client::ExportState(absl::string_view id, const CallOptions& call) {
  v1::StateServiceExportRequest request;
  request.set_id(std::string(id));
  return Unary<std::string>(options_, call, [&](grpc::ClientContext* context, auto* out) {
    const auto reader = v1::StateService::NewStub(channel_)->Export(context, request);
    v1::StateServiceExportResponse response;
    while (reader->Read(&response)) out->append(response.chunk());
    return reader->Finish();
  });
}

absl::StatusOr<v1::State> Client::ImportState(absl::string_view model, absl::string_view bytes,
                                              const CallOptions& call) {
  constexpr size_t kChunkBytes = size_t{256} << 10;  // far below the limit of a message
  AFT_ASSIGN_OR_RETURN(v1::StateServiceImportResponse response,
                       Unary<v1::StateServiceImportResponse>(
                           options_, call, [&](grpc::ClientContext* context, auto* out) {
                             const auto writer =
                                 v1::StateService::NewStub(channel_)->Import(context, out);
                             v1::StateServiceImportRequest request;
                             request.set_model(std::string(model));
                             request.set_bytes(bytes.size());
                             for (size_t at = 0; at < bytes.size(); at += kChunkBytes) {
                               request.set_chunk(std::string(bytes.substr(at, kChunkBytes)));
                               if (!writer->Write(request)) break;  // Finish returns the reason
                               request.Clear();
                             }
                             writer->WritesDone();
                             return writer->Finish();
                           }));
  return std::move(*response.mutable_state());
}

absl::StatusOr<HealthStatus> Client::Health(absl::string_view service, const CallOptions& call) {
  using grpc::health::v1::Health;
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(std::string(service));
  AFT_ASSIGN_OR_RETURN(const auto response, Unary(options_, call, Health::NewStub(any_channel_),
                                                  &Health::Stub::Check, request));
  return response.status();
}

}  // namespace aft::client
