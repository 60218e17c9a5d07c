#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"
#include "google/protobuf/message.h"
#include "server/call/carrier.h"
#include "server/call/work.h"
#include "server/config/config.h"
#include "server/engine/request.h"
#include "server/observability/methods.h"
#include "server/registry/served_model.h"

namespace aft::server {

// What a sequence beside the first costs: its stream in the engine with its stop strings, its part
// of what is pending, about.
inline constexpr size_t kSequenceBytes = size_t{8} << 10;

// A request that is decoded and checked. Its headers hold the service class only.
struct DecodedRequest {
  Work work;
  uint32_t sequences = 1;  // answers or texts, each with its parts and its end
  size_t bytes = 0;        // that the work holds, and its answer as far as it is known
  std::chrono::microseconds timeout{0};  // that the request sets itself; 0: none
};

// What a request goes on from, and whether it may be gone on from. Borrows from the request.
struct Continuation {
  const v1::Previous* previous = nullptr;  // a text before
  const v1::Store* store = nullptr;        // what it leaves behind is stored
  bool store_if_room = false;              // unless that is impossible, which is then no error
  size_t note_bytes = 0;                   // the most that Note takes
  // It continues a broken stream of a model of that fingerprint; `resume` names a state of it.
  std::optional<uint64_t> resumes;
  const v1::Resume* resume = nullptr;
};

// What a Call knows of its method: the messages of one request and of its answer. An implementation
// is written for each kind of request, knows neither gRPC nor threads, and is made for one call.
//
// The call decodes on one thread; the delivery is called with the call's lock held, except where
// it says otherwise.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual Method method() const = 0;

  // ---- The request.

  // The number of the field that names the model.
  static constexpr int kModelField = 1;
  // Whether an engine has a part in it; else a thread of the decode pool answers.
  virtual bool needs_engine() const { return true; }
  // Whether its messages carry tensors, so that they may be larger than others.
  virtual bool takes_tensors() const { return false; }
  // What the bytes of the request can become while they are decoded.
  virtual size_t RequestCost(const RequestBytes& bytes) const = 0;
  // Looks for what a refusal is to name, before anything is parsed.
  virtual void Peek(const RequestBytes& /*bytes*/) {}
  // The message to parse into.
  virtual google::protobuf::Message& request() = 0;
  // Of the parsed request: its model, and what the two fields are called.
  struct ModelName {
    absl::string_view field;
    std::string name;
    absl::string_view version_field;
    std::string version;
  };
  virtual ModelName model_name() const = 0;
  // Checks what does not depend on the model. INVALID_ARGUMENT begins with the path of the field.
  virtual absl::Status CheckRequest() { return absl::OkStatus(); }
  // Moves out the user for whom the client sends the request; "": the request does not say so.
  // Errors as of CheckRequest; they count for clients alone that share their turns by user.
  virtual absl::StatusOr<std::string> TakeUser() { return ""; }
  // The work for `model`; prepares the messages of the answer. A second time, when the request goes
  // over to another version. INVALID_ARGUMENT as CheckRequest; FAILED_PRECONDITION: WrongTask.
  virtual absl::StatusOr<DecodedRequest> Decode(const ServedModel& model,
                                                const LimitsConfig& limits) = 0;
  // Called until Prepare.
  virtual Continuation continuation() const { return {}; }
  // The text before is found. Whether Decode has to run again for that. INVALID_ARGUMENT as
  // CheckRequest.
  virtual absl::StatusOr<bool> SetPrevious(const SequenceState& /*previous*/) { return false; }
  // There is room for the state that a single sequence leaves: the id that it will have.
  virtual void SetStateId(const std::string& /*id*/) {}
  // An error of the way in, in terms of the fields that the client knows.
  virtual absl::Status InOwnNames(const absl::Status& status) const { return status; }
  // How one of several texts is called in an error: "texts[3]"; "": they have no names.
  virtual std::string TextPath(uint32_t /*text*/) const { return ""; }
  // The field that holds them has this name: "texts".
  std::string texts_field() const;

  // Whether a broken stream continues with the same tokens; tells the client so. `work` is
  // complete.
  virtual bool SetExact(const Work& /*work*/, const ModelInfo& /*info*/) { return false; }
  // Whether the stream is to survive this server, which is asked of a single generation alone.
  virtual bool resumable() const { return false; }
  // Tells the client under which id its stream can be resumed.
  virtual void SetResumeId(const std::string& /*id*/) {}
  // The work is charged for: takes the memory of the answer, and frees that of the request.
  virtual void Prepare() {}

  // ---- The answer, while it comes.

  // Whether a first message tells that the call has begun. It is in outgoing() after Decode.
  virtual bool has_first_message() const { return false; }
  // Adds to what is pending of a sequence.
  // NOLINTBEGIN(performance-unnecessary-value-param): those that keep it take it over.
  virtual void Append(TokenDelta /*delta*/, uint32_t /*sequence*/) {}
  virtual void Append(std::vector<float> /*vectors*/, uint32_t /*sequence*/) {}
  // NOLINTEND(performance-unnecessary-value-param)
  // One of several sequences has ended well. `state`: that it has left behind, or null.
  virtual void AppendFinished(const Outcome& /*outcome*/, uint32_t /*sequence*/,
                              const v1::State* /*state*/) {}
  // What is kept with the state of a single sequence that has ended so. Called without the lock,
  // after the last Append.
  virtual std::string Note(const Outcome& /*outcome*/) const { return ""; }
  // Moves what is pending, or a part of it, to outgoing(). False: nothing is. `state`: gets the id
  // of the state that the message tells of, if it tells of one.
  virtual bool Take(std::string& /*state*/) { return false; }
  virtual void Drop() = 0;
  // What is pending, about: in bytes on the wire, and in memory.
  virtual size_t pending_bytes() const { return 0; }
  virtual size_t held_bytes() const { return 0; }
  // What is said when the client is too far behind, or the answer of one message is too long.
  virtual absl::string_view too_much() const {
    return "slow client: it reads slower than the model writes";
  }

  // ---- Its messages. Called without the lock, by whoever may send.

  virtual const google::protobuf::MessageLite& outgoing() = 0;
  // Makes outgoing() a part of the sealed state that a stream leaves its client.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): who keeps it takes it over.
  virtual void SetHandOver(std::string /*chunk*/) {}
  // Makes outgoing() the last message. False: there is none to send. `stored`: the state of a
  // single sequence, or null. REQUIRES: outcome.status is OK.
  virtual bool Finish(const Outcome& outcome, const v1::State* stored) = 0;
  // What Finish will cost, in bytes, where that is too much for a thread of the engine.
  virtual size_t last_message_bytes() const { return 0; }
  // The call of a request that has found its model has ended.
  virtual void Record(const ServedModel& /*model*/, const absl::Status& /*status*/,
                      const Timings& /*timings*/) {}
};

// FAILED_PRECONDITION: `model` serves other methods than `method`.
absl::Status WrongTask(const ServedModel& model, Method method);

}  // namespace aft::server
