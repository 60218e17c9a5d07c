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

// What the fake answers to a call, beside the call's own x-request-id or "fake-1". Calls of other
// services than InferenceService, but ModelInfer, end with `status`; they stall, too, when a script
// that stalls has no events.
struct Script {
  std::vector<v1::GenerateResponse> events = {};  // of Generate
  // Of the method that answers with their type.
  std::vector<std::shared_ptr<const google::protobuf::Message>> other_events = {};
  enum class End {
    kStatus,       // ends with `status`
    kStall,        // says nothing more until the client leaves
    kEndlessText,  // one-token deltas until the client leaves; Generate only
  };
  End end = End::kStatus;
  grpc::Status status = {};
  std::multimap<std::string, std::string> trailers = {};
  bool anonymous = false;  // as what a broken connection is made out to be: without a request id
};

// A server on a loopback port (0: a free one) that answers every call by one script and tells what
// it saw. Thread-safe.
class FakeServer {
 public:
  explicit FakeServer(int port = 0, const std::shared_ptr<grpc::ServerCredentials>& credentials =
                                        grpc::InsecureServerCredentials());
  ~FakeServer();

  std::string address() const { return address_; }
  int port() const { return port_; }

  // Of calls that begin after this.
  void SetScript(Script script);
  // Of generations, instead: called by one at a time.
  void SetAnswer(std::function<Script(const v1::GenerateRequest&)> answer);
  // The same of all calls of InferenceService; nothing: the script.
  using AnyAnswer = std::function<std::optional<Script>(const google::protobuf::Message& request)>;
  void SetAnyAnswer(AnyAnswer answer);
  // The next streams are refused before their scripts, as servers do: without initial metadata.
  void RefuseNext(int streams, grpc::Status status,
                  std::multimap<std::string, std::string> trailers = {});
  // What health says of the whole server, also to those who watch it already. True at first.
  void SetServing(bool serving);
  void SetModels(std::vector<v1::Model> models);

  // The latest request of that type; an empty one when none has come.
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

  // Streams that have begun, refused ones included; watches of health are not counted.
  int requests() const;

  // Wait for the nth stream to begin; for the nth call of any kind to be cancelled by its client.
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

  // What that call gets; remembers its request.
  Answer AnswerTo(const grpc::GenericCallbackServerContext& context, const std::string& request);
  // Models are those that were set. Of services, "down" is not serving, "unknown" does not exist,
  // everything else serves.
  void AnswerUnary(const std::string& method, const std::string& request, Answer& answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // There are the states "a" and "b", each a page of the list.
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
  // By the name of the type; serialised.
  std::map<std::string, std::string> last_ ABSL_GUARDED_BY(mutex_);
  int requests_ ABSL_GUARDED_BY(mutex_) = 0;
  int refusals_ ABSL_GUARDED_BY(mutex_) = 0;  // yet to come
  Script refusal_ ABSL_GUARDED_BY(mutex_);
  bool serving_ ABSL_GUARDED_BY(mutex_) = true;
  std::string authorization_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> request_ids_ ABSL_GUARDED_BY(mutex_);
  std::string traceparent_ ABSL_GUARDED_BY(mutex_);
  std::set<Call*> watches_ ABSL_GUARDED_BY(mutex_);
  int cancellations_ ABSL_GUARDED_BY(mutex_) = 0;

  const std::unique_ptr<Service> service_;
  int port_ = 0;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

// `fingerprint`: 0 of a server that cannot resume.
v1::GenerateResponse StartedEvent(uint64_t seed = 7, uint64_t fingerprint = 0);
// One token for each byte of `text`.
v1::GenerateResponse DeltaEvent(uint32_t first_index, const std::string& text);
v1::GenerateResponse FinishedEvent(uint32_t tokens);

// Ends with `status` after these events, or says nothing more until the client leaves.
Script FailedScript(grpc::Status status, std::vector<v1::GenerateResponse> events = {});
Script StalledScript(std::vector<v1::GenerateResponse> events = {});
// Started, then tokens without an end.
Script EndlessScript();
// Started, one Delta for each of `texts`, Finished.
Script TextScript(const std::vector<std::string>& texts);

// These events, as text-proto.
template <typename Response>
Script StreamScript(const std::vector<const char*>& events) {
  Script script;
  for (const char* event : events) {
    script.other_events.push_back(std::make_shared<Response>(FromText<Response>(event)));
  }
  return script;
}

// "abc" with the tokens 98 and 99 scored in a chunk each, -1 and -2, with one alternative.
Script ScoreScript();
// Two vectors of width 2, in a message each: 1, 0.1 and -2.5, 3.
Script EncodeScript();

}  // namespace aft::client
