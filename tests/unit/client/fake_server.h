#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "aft/v1/inference.pb.h"
#include "aft/v1/models.pb.h"
#include "aft/v1/states.pb.h"
#include "base/check.h"
#include "base/mutex.h"
#include "google/protobuf/message.h"
#include "tests/support/proto_text.h"

namespace aft::client {

// The fake's answer to a call. The fake also sends the call's own x-request-id, or `request_id`.
// Calls of other services than InferenceService, ModelInfer excepted, end with `status`, and get a
// normal answer if it is OK. If a script that stalls has no events, they stall too.
struct Script {
  std::vector<v1::GenerateResponse> events = {};  // for Generate
  // For the method whose answers have this type.
  std::vector<std::shared_ptr<const google::protobuf::Message>> other_events = {};
  enum class End {
    kStatus,       // ends with `status`
    kStall,        // sends nothing more until the client leaves
    kEndlessText,  // one-token deltas until the client leaves; Generate only
  };
  End end = End::kStatus;
  grpc::Status status = {};
  std::multimap<std::string, std::string> trailers = {};
  std::string request_id = "fake-1";  // "": no id, like an error that a broken connection causes
};

// A server on a loopback port (0: a free one) that answers every call according to one script, and
// reports what it received. Thread-safe.
class FakeServer {
 public:
  explicit FakeServer(int port = 0, const std::shared_ptr<grpc::ServerCredentials>& credentials =
                                        grpc::InsecureServerCredentials());
  ~FakeServer();

  std::string address() const { return address_; }
  int port() const { return port_; }

  // Sets the script of all calls that begin after this.
  void SetScript(Script script);
  // Makes the script of each generation instead. `answer` is called for one at a time.
  void SetAnswer(std::function<Script(const v1::GenerateRequest&)> answer);
  // Does the same as SetAnswer for all calls of InferenceService. Without a result, the script of
  // SetScript counts.
  using AnyAnswer = std::function<std::optional<Script>(const google::protobuf::Message& request)>;
  void SetAnyAnswer(AnyAnswer answer);
  // Refuses the next streams before their scripts begin, without initial metadata, as servers do.
  void RefuseNext(int streams, grpc::Status status,
                  std::multimap<std::string, std::string> trailers = {});
  // Sets the health of the whole server, also for watches that are already open. At first it is
  // true.
  void SetServing(bool serving);
  void SetModels(std::vector<v1::Model> models);

  // The latest request of that type, or an empty one if none has come.
  template <typename Request>
  Request last() const {
    MutexLock lock(mutex_);
    const auto found = last_.find(Request::descriptor()->full_name());
    Request request;
    AFT_CHECK(found == last_.end() || request.ParseFromString(found->second));
    return request;
  }

  // Metadata `authorization` of the latest stream.
  std::string authorization() const;
  // Metadata `x-request-id` of each stream; "" where there was none.
  std::vector<std::string> request_ids() const;
  // Metadata `traceparent` of the last stream.
  std::string traceparent() const;
  // The connections that streams have come from.
  std::set<std::string> peers() const;

  // The number of streams that have begun, including refused ones but not watches of health.
  int requests() const;

  // Blocks until a request of that type has come.
  template <typename Request>
  void WaitFor() {
    MutexLock lock(mutex_);
    while (last_.count(Request::descriptor()->full_name()) == 0) changed_.Wait(mutex_);
  }
  // Block until n streams have begun, or until n calls of any kind were cancelled by their clients.
  void WaitForRequests(int n);
  void WaitForCancellations(int n);

 private:
  class Call;
  class Service;
  struct Answer {
    Script script;
    Script::End end = Script::End::kStatus;
    std::vector<grpc::ByteBuffer> messages;
    bool refused = false;
  };

  // Returns the answer to a call, and keeps its request.
  Answer AnswerTo(const grpc::GenericCallbackServerContext& context, const std::string& request);
  // The models are those of SetModels. The service "down" is not serving, "unknown" does not exist,
  // and every other service has the health of the server.
  void AnswerUnary(const std::string& method, const std::string& request, Answer& answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // There are two states, "a" and "b". Each of them is a page of the list.
  static void AnswerOfStates(const std::string& method, const std::string& request, Answer& answer);
  void RecordCancellation();
  void AddWatch(Call* call);
  void RemoveWatch(Call* call);
  static grpc::ByteBuffer HealthMessage(bool serving);

  mutable Mutex mutex_;
  CondVar changed_;
  Script script_ ABSL_GUARDED_BY(mutex_);
  AnyAnswer answer_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::Model> models_ ABSL_GUARDED_BY(mutex_);
  // The serialised requests, by the name of their type.
  std::map<std::string, std::string> last_ ABSL_GUARDED_BY(mutex_);
  int requests_ ABSL_GUARDED_BY(mutex_) = 0;
  int refusals_ ABSL_GUARDED_BY(mutex_) = 0;  // yet to come
  Script refusal_ ABSL_GUARDED_BY(mutex_);
  bool serving_ ABSL_GUARDED_BY(mutex_) = true;
  std::string authorization_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> request_ids_ ABSL_GUARDED_BY(mutex_);
  std::string traceparent_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> peers_ ABSL_GUARDED_BY(mutex_);
  std::set<Call*> watches_ ABSL_GUARDED_BY(mutex_);
  int cancellations_ ABSL_GUARDED_BY(mutex_) = 0;

  const std::unique_ptr<Service> service_;
  int port_ = 0;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

// `fingerprint`: 0 if the server cannot resume.
v1::GenerateResponse StartedEvent(uint64_t seed = 7, uint64_t fingerprint = 0);
// One token for each byte of `text`.
v1::GenerateResponse DeltaEvent(uint32_t first_index, const std::string& text);
v1::GenerateResponse FinishedEvent(uint32_t tokens);

// Ends with `status` after these events, or sends nothing more until the client leaves.
Script FailedScript(grpc::Status status, std::vector<v1::GenerateResponse> events = {});
Script StalledScript(std::vector<v1::GenerateResponse> events = {});
// Started, then tokens without an end.
Script EndlessScript();
// Started, one Delta for each of `texts`, Finished.
Script TextScript(const std::vector<std::string>& texts);

// A script with these events, which are given as text proto.
template <typename Response>
Script StreamScript(const std::vector<const char*>& events) {
  Script script;
  for (const char* event : events) {
    script.other_events.push_back(std::make_shared<Response>(FromText<Response>(event)));
  }
  return script;
}

// The scores of "abc": -1 for token 98 and -2 for token 99, in a chunk each, with one alternative.
Script ScoreScript();
// Two vectors of width 2, in a message each: 1, 0.1 and -2.5, 3.
Script EncodeScript();

}  // namespace aft::client
