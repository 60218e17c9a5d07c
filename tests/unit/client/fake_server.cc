#include "tests/unit/client/fake_server.h"

#include <grpcpp/generic/async_generic_service.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "grpc/health/v1/health.pb.h"

namespace aft::client {
namespace {

constexpr char kWatch[] = "/grpc.health.v1.Health/Watch";

grpc::ByteBuffer ToBytes(const google::protobuf::Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

std::string ToString(grpc::ByteBuffer bytes) {
  grpc::Slice slice;
  AFT_CHECK(bytes.DumpToSingleSlice(&slice).ok());
  return std::string(slice.begin(), slice.end());
}

// Returns an empty string if there is no metadata of that name.
std::string Metadata(const grpc::GenericCallbackServerContext& context, const char* key) {
  const auto found = context.client_metadata().find(key);
  return found == context.client_metadata().end()
             ? ""
             : std::string(found->second.data(), found->second.size());
}

// Returns the generated descriptor of a method such as "/aft.v1.ModelService/List".
const google::protobuf::MethodDescriptor& FindMethod(std::string name) {
  std::replace(name.begin(), name.end(), '/', '.');
  const auto* const method =
      google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(name.substr(1));
  AFT_CHECK(method != nullptr);
  return *method;
}

}  // namespace

// One call of any method. Writes the answer's messages one by one, then ends as the script says. At
// most one operation runs at a time. Finish is called once, after the last operation.
class FakeServer::Call final : public grpc::ServerGenericBidiReactor {
 public:
  Call(FakeServer& server, grpc::GenericCallbackServerContext& context)
      : server_(server), context_(context) {
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      is_watch_ = context_.method() == kWatch;
      if (is_watch_) {
        answer_.end = Script::End::kStall;
      } else {
        answer_ = server_.AnswerTo(context_, ToString(request_));
      }
      AddMetadata();
      if (!answer_.refused) StartSendInitialMetadata();
    }
    Next(ok);
    if (is_watch_) server_.AddWatch(this);
  }
  // Sends one more message in a call that its script keeps open.
  void Say(grpc::ByteBuffer message) {
    MutexLock lock(mutex_);
    answer_.messages.push_back(std::move(message));
    if (!busy_ && !finished_) Write(answer_.messages[next_++]);
  }
  void OnWriteDone(bool ok) override { Next(ok); }
  void OnCancel() override {
    if (!is_watch_) server_.RecordCancellation();
    MutexLock lock(mutex_);
    cancelled_ = true;
    if (!busy_) FinishOnce(grpc::Status::CANCELLED);
  }
  void OnDone() override {
    if (is_watch_) server_.RemoveWatch(this);
    delete this;
  }

 private:
  void AddMetadata() {
    const std::string given = Metadata(context_, "x-request-id");
    const std::string& own = answer_.script.request_id;
    const std::string id = given.empty() ? own : given;
    if (!own.empty()) {
      answer_.refused ? context_.AddTrailingMetadata("x-request-id", id)
                      : context_.AddInitialMetadata("x-request-id", id);
    }
    for (const auto& [key, value] : answer_.script.trailers) {
      context_.AddTrailingMetadata(key, value);
    }
  }

  void Next(bool ok) {
    MutexLock lock(mutex_);
    busy_ = false;
    if (!ok || cancelled_) {
      FinishOnce(grpc::Status::CANCELLED);
    } else if (next_ < answer_.messages.size()) {
      Write(answer_.messages[next_++]);
    } else if (answer_.end == Script::End::kEndlessText) {
      Write(ToBytes(DeltaEvent(endless_index_++, "x")));
    } else if (answer_.end == Script::End::kStatus) {
      FinishOnce(answer_.script.status);
    }
  }

  void Write(grpc::ByteBuffer message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    busy_ = true;
    outgoing_.Swap(&message);
    StartWrite(&outgoing_);
  }

  void FinishOnce(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!finished_) Finish(status);
    finished_ = true;
  }

  FakeServer& server_;
  grpc::GenericCallbackServerContext& context_;
  grpc::ByteBuffer request_;
  bool is_watch_ = false;
  Answer answer_;  // its messages are guarded by mutex_
  Mutex mutex_;
  grpc::ByteBuffer outgoing_ ABSL_GUARDED_BY(mutex_);
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t endless_index_ ABSL_GUARDED_BY(mutex_) = 0;
  bool busy_ ABSL_GUARDED_BY(mutex_) = true;  // reading the request at first
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

class FakeServer::Service final : public grpc::CallbackGenericService {
 public:
  explicit Service(FakeServer& server) : server_(server) {}
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    return new Call(server_, *context);
  }

 private:
  FakeServer& server_;
};

FakeServer::FakeServer(int port, const std::shared_ptr<grpc::ServerCredentials>& credentials)
    : service_(std::make_unique<Service>(*this)) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), credentials, &port_);
  builder.RegisterCallbackGenericService(service_.get());
  server_ = builder.BuildAndStart();
  AFT_CHECK(server_ != nullptr && port_ > 0);
  address_ = absl::StrCat("127.0.0.1:", port_);
}

FakeServer::~FakeServer() {
  // With a deadline of now, calls that still run are cancelled, and their reactors finish.
  server_->Shutdown(std::chrono::system_clock::now());
}

void FakeServer::SetScript(Script script) {
  MutexLock lock(mutex_);
  script_ = std::move(script);
}

void FakeServer::SetAnswer(std::function<Script(const v1::GenerateRequest&)> answer) {
  SetAnyAnswer(
      [answer = std::move(answer)](const google::protobuf::Message& any) -> std::optional<Script> {
        const auto* const request = dynamic_cast<const v1::GenerateRequest*>(&any);
        if (request == nullptr) return std::nullopt;
        return answer(*request);
      });
}

void FakeServer::SetAnyAnswer(AnyAnswer answer) {
  MutexLock lock(mutex_);
  answer_ = std::move(answer);
}

void FakeServer::SetModels(std::vector<v1::Model> models) {
  MutexLock lock(mutex_);
  models_ = std::move(models);
}

FakeServer::Answer FakeServer::AnswerTo(const grpc::GenericCallbackServerContext& context,
                                        const std::string& request) {
  const google::protobuf::MethodDescriptor& method = FindMethod(context.method());
  MutexLock lock(mutex_);
  last_[method.input_type()->full_name()] = request;
  changed_.NotifyAll();
  Answer answer = {.script = script_, .end = script_.end, .messages = {}};
  if (method.service()->name() == "InferenceService" || method.name() == "ModelInfer") {
    ++requests_;
    authorization_ = Metadata(context, "authorization");
    request_ids_.push_back(Metadata(context, "x-request-id"));
    traceparent_ = Metadata(context, "traceparent");
    peers_.insert(context.peer());
    if (refusals_ > 0) {
      --refusals_;
      return {.script = refusal_, .end = Script::End::kStatus, .messages = {}, .refused = true};
    }
    const std::unique_ptr<google::protobuf::Message> message(
        google::protobuf::MessageFactory::generated_factory()
            ->GetPrototype(method.input_type())
            ->New());
    AFT_CHECK(message->ParseFromString(request));
    if (std::optional<Script> script; answer_ && (script = answer_(*message))) {
      answer.refused = script->events.empty() && script->other_events.empty() &&
                       script->end == Script::End::kStatus;
      answer.end = script->end;
      answer.script = *std::move(script);
    }
    const auto add = [&](const google::protobuf::Message& event) {
      if (event.GetDescriptor() == method.output_type()) answer.messages.push_back(ToBytes(event));
    };
    for (const v1::GenerateResponse& event : answer.script.events) add(event);
    for (const auto& event : answer.script.other_events) add(*event);
    return answer;
  }
  if (answer.end != Script::End::kStall || !script_.events.empty()) {
    answer.end = Script::End::kStatus;
    if (script_.status.ok()) {
      const bool of_states = method.service()->name() == "StateService";
      of_states ? AnswerOfStates(method.name(), request, answer)
                : AnswerUnary(method.name(), request, answer);
    }
  }
  return answer;
}

void FakeServer::RefuseNext(int streams, grpc::Status status,
                            std::multimap<std::string, std::string> trailers) {
  MutexLock lock(mutex_);
  refusals_ = streams;
  refusal_ = {.status = std::move(status), .trailers = std::move(trailers)};
}

void FakeServer::SetServing(bool serving) {
  MutexLock lock(mutex_);
  serving_ = serving;
  for (Call* watch : watches_) watch->Say(HealthMessage(serving));
}

void FakeServer::AddWatch(Call* call) {
  MutexLock lock(mutex_);
  watches_.insert(call);
  call->Say(HealthMessage(serving_));
}

void FakeServer::RemoveWatch(Call* call) {
  MutexLock lock(mutex_);
  watches_.erase(call);
}

grpc::ByteBuffer FakeServer::HealthMessage(bool serving) {
  grpc::health::v1::HealthCheckResponse response;
  response.set_status(serving ? response.SERVING : response.NOT_SERVING);
  return ToBytes(response);
}

std::string FakeServer::authorization() const {
  MutexLock lock(mutex_);
  return authorization_;
}

std::string FakeServer::traceparent() const {
  MutexLock lock(mutex_);
  return traceparent_;
}

std::set<std::string> FakeServer::peers() const {
  MutexLock lock(mutex_);
  return peers_;
}

std::vector<std::string> FakeServer::request_ids() const {
  MutexLock lock(mutex_);
  return request_ids_;
}

int FakeServer::requests() const {
  MutexLock lock(mutex_);
  return requests_;
}

void FakeServer::WaitForRequests(int n) {
  MutexLock lock(mutex_);
  while (requests_ < n) changed_.Wait(mutex_);
}

void FakeServer::WaitForCancellations(int n) {
  MutexLock lock(mutex_);
  while (cancellations_ < n) changed_.Wait(mutex_);
}

void FakeServer::RecordCancellation() {
  MutexLock lock(mutex_);
  ++cancellations_;
  changed_.NotifyAll();
}

void FakeServer::AnswerUnary(const std::string& method, const std::string& request,
                             Answer& answer) {
  if (method == "List") {
    v1::ListResponse response;
    response.mutable_models()->Assign(models_.begin(), models_.end());
    answer.messages.push_back(ToBytes(response));
  } else if (method == "Get") {
    v1::GetRequest get;
    AFT_CHECK(get.ParseFromString(request));
    answer.script.status = {grpc::NOT_FOUND, "no model \"" + get.name() + "\""};
    for (const v1::Model& model : models_) {
      if (model.name() != get.name()) continue;
      v1::GetResponse response;
      *response.mutable_model() = model;
      answer.messages.push_back(ToBytes(response));
      answer.script.status = grpc::Status::OK;
    }
  } else {
    grpc::health::v1::HealthCheckRequest check;
    AFT_CHECK(check.ParseFromString(request));
    if (check.service() == "unknown") {
      answer.script.status = {grpc::NOT_FOUND, "no such service"};
    } else {
      answer.messages.push_back(HealthMessage(serving_ && check.service() != "down"));
    }
  }
}

void FakeServer::AnswerOfStates(const std::string& method, const std::string& request,
                                Answer& answer) {
  v1::State first;
  first.set_id("a");
  v1::State second;
  second.set_id("b");
  if (method == "List") {
    v1::StateServiceListRequest list;
    AFT_CHECK(list.ParseFromString(request));
    v1::StateServiceListResponse response;
    if (list.after_id().empty()) *response.add_states() = first;
    if (list.after_id() == "a") *response.add_states() = second;
    answer.messages.push_back(ToBytes(response));
    return;
  }
  v1::StateServiceGetRequest get;  // or a StateServiceDeleteRequest, which has the same fields
  AFT_CHECK(get.ParseFromString(request));
  v1::StateServiceGetResponse response;
  *response.mutable_state() = get.id() == "a" ? first : second;
  if (get.id() != "a" && get.id() != "b") {
    answer.script.status = {grpc::NOT_FOUND, "no state of this id"};
  } else if (method == "Get") {
    answer.messages.push_back(ToBytes(response));
  } else {
    answer.messages.push_back(ToBytes(v1::StateServiceDeleteResponse()));
  }
}

v1::GenerateResponse StartedEvent(uint64_t seed, uint64_t fingerprint) {
  auto event = FromText<v1::GenerateResponse>(
      "started { model: 'fake' model_version: '1' prompt_tokens: 5 }");
  event.mutable_started()->set_seed(seed);
  event.mutable_started()->set_fingerprint(fingerprint);
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
  return {.events = std::move(events), .status = std::move(status)};
}

Script StalledScript(std::vector<v1::GenerateResponse> events) {
  return {.events = std::move(events), .end = Script::End::kStall};
}

Script EndlessScript() { return {.events = {StartedEvent()}, .end = Script::End::kEndlessText}; }

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
  return StreamScript<v1::ScoreResponse>({
      "started { model: 'fake' tokens: 3 }",
      "chunk { first_index: 1 token_ids: 98"
      "        logprobs { logprob: -1 top { token_id: 5 logprob: -0.5 } } }",
      "chunk { first_index: 2 token_ids: 99"
      "        logprobs { logprob: -2 top { token_id: 5 logprob: -0.5 } } }",
      "finished { scored_tokens: 2 scored_bytes: 2 logprob: -3 perplexity: 4.4816890703 }",
  });
}

Script EncodeScript() {
  return StreamScript<v1::EncodeResponse>({
      "started { model: 'fake' tokens: 2 width: 2 }",
      "vectors { values: [1, 0.1] }",
      "vectors { first_index: 1 values: [-2.5, 3] }",
      "finished { batch_rows: 4 }",
  });
}

}  // namespace aft::client
