#include "tests/unit/client/fake_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "aft/v1/inference.grpc.pb.h"
#include "aft/v1/models.grpc.pb.h"
#include "base/check.h"
#include "google/protobuf/text_format.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace aft::client {
namespace {

template <typename Message>
Message FromText(const std::string& text) {
  Message message;
  AFT_CHECK(google::protobuf::TextFormat::ParseFromString(text, &message));
  return message;
}

void AddMetadata(const Script& script, grpc::CallbackServerContext& context) {
  if (script.send_request_id) {
    const auto given = context.client_metadata().find("x-request-id");
    std::string id = script.request_id.empty() ? "fake-1" : script.request_id;
    if (given != context.client_metadata().end()) {
      id.assign(given->second.data(), given->second.size());
    }
    context.AddInitialMetadata("x-request-id", id);
  }
  for (const auto& [key, value] : script.trailers) context.AddTrailingMetadata(key, value);
}

// The next of an endless stream; nothing for the methods that have none.
bool NextEndless(uint32_t index, v1::GenerateResponse& event) {
  event = DeltaEvent(index, "x");
  return true;
}
template <typename Response>
bool NextEndless(uint32_t /*index*/, Response& /*event*/) {
  return false;
}

// Writes the events one by one, then ends as the script says. Ends in one Finish, never beside a
// pending write.
template <typename Response>
class StreamReactor final : public grpc::ServerWriteReactor<Response> {
 public:
  StreamReactor(FakeServer& server, const Script& script, std::vector<Response> events)
      : server_(server), end_(script.end), status_(script.status), events_(std::move(events)) {
    this->StartSendInitialMetadata();
    Next(/*ok=*/true);
  }

  void OnWriteDone(bool ok) override { Next(ok); }
  void OnCancel() override {
    server_.RecordCancellation();
    MutexLock lock(mutex_);
    cancelled_ = true;
    if (!writing_) FinishOnce(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  void Next(bool ok) {
    MutexLock lock(mutex_);
    writing_ = false;
    if (!ok || cancelled_) {
      FinishOnce(grpc::Status::CANCELLED);
    } else if (next_ < events_.size()) {
      Write(events_[next_++]);
    } else if (end_ == Script::End::kEndlessText && NextEndless(endless_index_++, endless_)) {
      Write(endless_);
    } else if (end_ == Script::End::kStatus) {
      FinishOnce(status_);
    }
  }

  void Write(const Response& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    writing_ = true;
    this->StartWrite(&event);
  }

  void FinishOnce(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    finished_ = true;
    this->Finish(status);
  }

  FakeServer& server_;
  const Script::End end_;
  const grpc::Status status_;
  const std::vector<Response> events_;
  Mutex mutex_;
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t endless_index_ ABSL_GUARDED_BY(mutex_) = 0;
  Response endless_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

class StalledReactor final : public grpc::ServerUnaryReactor {
 public:
  explicit StalledReactor(FakeServer& server) : server_(server) {}
  void OnCancel() override {
    server_.RecordCancellation();
    Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  FakeServer& server_;
};

// Ends a unary call by the script; `fill` makes the response and its status when all is well.
template <typename Fill>
grpc::ServerUnaryReactor* Answer(FakeServer& server, grpc::CallbackServerContext& context,
                                 const Fill& fill) {
  const Script script = server.script();
  AddMetadata(script, context);
  if (script.end == Script::End::kStall && script.events.empty()) return new StalledReactor(server);
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  reactor->Finish(script.status.ok() ? fill() : script.status);
  return reactor;
}

class Inference final : public v1::InferenceService::CallbackService {
 public:
  explicit Inference(FakeServer& server) : server_(server) {}
  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override {
    return Start(*context, *request, &Script::events);
  }
  grpc::ServerWriteReactor<v1::ScoreResponse>* Score(grpc::CallbackServerContext* context,
                                                     const v1::ScoreRequest* request) override {
    return Start(*context, *request, &Script::score_events);
  }
  grpc::ServerWriteReactor<v1::EncodeResponse>* Encode(grpc::CallbackServerContext* context,
                                                       const v1::EncodeRequest* request) override {
    return Start(*context, *request, &Script::encode_events);
  }

 private:
  template <typename Request, typename Response>
  grpc::ServerWriteReactor<Response>* Start(grpc::CallbackServerContext& context,
                                            const Request& request,
                                            std::vector<Response> Script::*events) {
    const Script script = server_.script();
    AddMetadata(script, context);
    server_.RecordRequest(request);
    return new StreamReactor<Response>(server_, script, script.*events);
  }

  FakeServer& server_;
};

class Models final : public v1::ModelService::CallbackService {
 public:
  explicit Models(FakeServer& server) : server_(server) {}
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context, const v1::ListRequest*,
                                 v1::ListResponse* response) override {
    return Answer(server_, *context, [&] {
      for (const v1::Model& model : server_.models()) *response->add_models() = model;
      return grpc::Status::OK;
    });
  }
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context, const v1::GetRequest* request,
                                v1::GetResponse* response) override {
    return Answer(server_, *context, [&] {
      for (const v1::Model& model : server_.models()) {
        if (model.name() != request->name()) continue;
        *response->mutable_model() = model;
        return grpc::Status::OK;
      }
      return grpc::Status(grpc::NOT_FOUND, "no model \"" + request->name() + "\"");
    });
  }

 private:
  FakeServer& server_;
};

class Health final : public grpc::health::v1::Health::CallbackService {
 public:
  explicit Health(FakeServer& server) : server_(server) {}
  // "down" is not serving, "unknown" does not exist, everything else serves.
  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override {
    return Answer(server_, *context, [&] {
      if (request->service() == "unknown") return grpc::Status(grpc::NOT_FOUND, "no such service");
      response->set_status(request->service() == "down"
                               ? grpc::health::v1::HealthCheckResponse::NOT_SERVING
                               : grpc::health::v1::HealthCheckResponse::SERVING);
      return grpc::Status::OK;
    });
  }

 private:
  FakeServer& server_;
};

}  // namespace

FakeServer::FakeServer() {
  services_.push_back(std::make_unique<Inference>(*this));
  services_.push_back(std::make_unique<Models>(*this));
  services_.push_back(std::make_unique<Health>(*this));
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  for (const auto& service : services_) builder.RegisterService(service.get());
  server_ = builder.BuildAndStart();
  AFT_CHECK(server_ != nullptr && port_ > 0);
  address_ = absl::StrCat("127.0.0.1:", port_);
}

FakeServer::~FakeServer() {
  // Past: calls that still run are cancelled, and their reactors finish then.
  server_->Shutdown(std::chrono::system_clock::now());
}

void FakeServer::SetScript(Script script) {
  MutexLock lock(mutex_);
  script_ = std::move(script);
}

Script FakeServer::script() const {
  MutexLock lock(mutex_);
  return script_;
}

void FakeServer::SetModels(std::vector<v1::Model> models) {
  MutexLock lock(mutex_);
  models_ = std::move(models);
}

std::vector<v1::Model> FakeServer::models() const {
  MutexLock lock(mutex_);
  return models_;
}

void FakeServer::WaitForRequests(int n) {
  MutexLock lock(mutex_);
  while (requests_ < n) changed_.Wait(mutex_);
}

void FakeServer::WaitForCancellations(int n) {
  MutexLock lock(mutex_);
  while (cancellations_ < n) changed_.Wait(mutex_);
}

int FakeServer::cancellations() const {
  MutexLock lock(mutex_);
  return cancellations_;
}

void FakeServer::RecordRequest(const google::protobuf::Message& request) {
  MutexLock lock(mutex_);
  last_[request.GetTypeName()] = request.SerializeAsString();
  ++requests_;
  changed_.NotifyAll();
}

void FakeServer::RecordCancellation() {
  MutexLock lock(mutex_);
  ++cancellations_;
  changed_.NotifyAll();
}

v1::GenerateResponse StartedEvent(uint64_t seed) {
  auto event = FromText<v1::GenerateResponse>(
      "started { model: 'fake' model_version: '1' prompt_tokens: 5 }");
  event.mutable_started()->set_seed(seed);
  return event;
}

v1::GenerateResponse DeltaEvent(uint32_t first_index, const std::string& text) {
  v1::GenerateResponse event;
  v1::Delta& delta = *event.mutable_delta();
  delta.set_first_index(first_index);
  for (const char c : text) delta.add_token_ids(static_cast<unsigned char>(c));
  delta.set_text(text);
  return event;
}

v1::GenerateResponse FinishedEvent(uint32_t tokens) {
  return FromText<v1::GenerateResponse>(
      absl::Substitute("finished { reason: FINISH_REASON_LENGTH limit: 'stop.max_tokens=$0'"
                       "           usage { prompt_tokens: 5 generated_tokens: $0 }"
                       "           timings { queue_us: 10 first_token_us: 1000 total_us: 2000 } }",
                       tokens));
}

Script FailedScript(grpc::Status status, std::vector<v1::GenerateResponse> events) {
  Script script;
  script.events = std::move(events);
  script.status = std::move(status);
  return script;
}

Script StalledScript(std::vector<v1::GenerateResponse> events) {
  Script script;
  script.events = std::move(events);
  script.end = Script::End::kStall;
  return script;
}

Script EndlessScript() {
  Script script;
  script.events = {StartedEvent()};
  script.end = Script::End::kEndlessText;
  return script;
}

Script TextScript(const std::vector<std::string>& texts) {
  Script script;
  script.events.push_back(StartedEvent());
  uint32_t tokens = 0;
  for (const std::string& text : texts) {
    script.events.push_back(DeltaEvent(tokens, text));
    tokens += static_cast<uint32_t>(text.size());
  }
  script.events.push_back(FinishedEvent(tokens));
  return script;
}

Script ScoreScript() {
  Script script;
  for (const char* event : {
           "started { model: 'fake' tokens: 3 }",
           "chunk { first_index: 1 token_ids: 98"
           "        logprobs { logprob: -1 top { token_id: 5 logprob: -0.5 } } }",
           "chunk { first_index: 2 token_ids: 99"
           "        logprobs { logprob: -2 top { token_id: 5 logprob: -0.5 } } }",
           "finished { scored_tokens: 2 scored_bytes: 2 logprob: -3 perplexity: 4.4816890703 }",
       }) {
    script.score_events.push_back(FromText<v1::ScoreResponse>(event));
  }
  return script;
}

Script EncodeScript() {
  Script script;
  for (const char* event : {
           "started { model: 'fake' tokens: 2 width: 2 }",
           "vectors { values: [1, 0.1] }",
           "vectors { first_index: 1 values: [-2.5, 3] }",
           "finished { batch_rows: 4 }",
       }) {
    script.encode_events.push_back(FromText<v1::EncodeResponse>(event));
  }
  return script;
}

}  // namespace aft::client
