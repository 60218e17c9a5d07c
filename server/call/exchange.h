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

// The approximate memory of each sequence after the first: its stream in the engine with its stop
// strings, and its part of the pending answer.
inline constexpr size_t kSequenceBytes = size_t{8} << 10;

// A request that is decoded and checked. Of the headers in `work`, only the service class is set.
struct DecodedRequest {
  Work work;
  uint32_t sequences = 1;                // answers or texts; each has its own parts and end
  size_t bytes = 0;                      // memory of the work and of the known part of the answer
  std::chrono::microseconds timeout{0};  // that the request sets; 0: none
};

// The state that a request continues from, and the state that it leaves. Borrows from the request.
struct Continuation {
  const v1::Previous* previous = nullptr;  // the text before
  const v1::Store* store = nullptr;        // the state at the end is to be stored
  bool store_if_room = false;              // if it cannot be stored, that is no error
  size_t note_bytes = 0;                   // the largest size of Note
  // Set if it continues a broken stream: the fingerprint of that stream's model.
  std::optional<uint64_t> resumes;
  const v1::Resume* resume = nullptr;  // names a state of the broken stream
};

// The part of a call that depends on its method: the messages of one request and of its answer.
// Each kind of request has an implementation, which knows nothing of gRPC or threads. One object
// serves one call.
//
// The call decodes on one thread. It holds its lock while it calls the functions of the answer,
// except where a comment says otherwise.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual Method method() const = 0;

  // ---- The request.

  // The number of the message field that names the model.
  static constexpr int kModelField = 1;
  // Whether an engine takes part; otherwise a thread of the decode pool makes the answer.
  virtual bool needs_engine() const { return true; }
  // Whether its messages carry tensors, and may therefore be larger than other messages.
  virtual bool takes_tensors() const { return false; }
  // The largest amount of memory that the bytes of the request can become while they are decoded.
  virtual size_t RequestCost(const RequestBytes& bytes) const = 0;
  // Reads, before the message is parsed, what the answer to a refused request must name.
  virtual void Peek(const RequestBytes& /*bytes*/) {}
  // The message to parse into.
  virtual google::protobuf::Message& request() = 0;
  // The model and version that the parsed request names, and the names of the two fields.
  struct ModelName {
    absl::string_view field;
    std::string name;
    absl::string_view version_field;
    std::string version;
  };
  virtual ModelName model_name() const = 0;
  // Checks all that does not depend on the model. The message of INVALID_ARGUMENT begins with the
  // path of the field.
  virtual absl::Status CheckRequest() { return absl::OkStatus(); }
  // Moves out the user for whom the client sends the request; empty if the request names none.
  // Errors as CheckRequest; the call ignores them unless its client shares turns by user.
  virtual absl::StatusOr<std::string> TakeUser() { return ""; }
  // Returns the work for `model`, and prepares the messages of the answer. Is called again when the
  // request switches to another version. INVALID_ARGUMENT as CheckRequest; FAILED_PRECONDITION as
  // WrongTask.
  virtual absl::StatusOr<DecodedRequest> Decode(const ServedModel& model,
                                                const LimitsConfig& limits) = 0;
  // Is not called after Prepare.
  virtual Continuation continuation() const { return {}; }
  // The state of the text before was found. Returns whether Decode has to run again because of it.
  // INVALID_ARGUMENT as CheckRequest.
  virtual absl::StatusOr<bool> SetPrevious(const SequenceState& /*previous*/) { return false; }
  // Room is reserved for the state of a single sequence, which will have this id.
  virtual void SetStateId(const std::string& /*id*/) {}
  // Rewords the error with which the call ends, so that it uses names of fields that the client
  // knows. Is called once, without the lock, perhaps after Prepare.
  virtual absl::Status InOwnNames(const absl::Status& status) const { return status; }
  // The path of one of several texts in an error, such as "texts[3]"; "" if texts have no paths.
  virtual std::string TextPath(uint32_t /*text*/) const { return ""; }
  // The name of the field with these texts, such as "texts".
  std::string texts_field() const;

  // Whether a broken stream continues with exactly the same tokens; also tells the client so.
  // `work` is complete.
  virtual bool SetExact(const Work& /*work*/, const ModelInfo& /*info*/) { return false; }
  // Whether the stream is to survive this server. Is called only for a single generation.
  virtual bool resumable() const { return false; }
  // Tells the client under which id its stream can be resumed.
  virtual void SetResumeId(const std::string& /*id*/) {}
  // The work is charged for. Allocates the answer and frees the request.
  virtual void Prepare() {}

  // ---- The answer, while it arrives.

  // Whether parts of the answer may leave before the last message. Is constant once the request is
  // decoded, and is called without the lock.
  virtual bool streams() const { return true; }
  // Whether a first message tells the client that the call has begun. Decode puts it in outgoing().
  virtual bool has_first_message() const { return false; }
  // Adds a part to the pending answer of a sequence.
  // NOLINTBEGIN(performance-unnecessary-value-param): overrides may move from the argument.
  virtual void Append(TokenDelta /*delta*/, uint32_t /*sequence*/) {}
  virtual void Append(std::vector<float> /*vectors*/, uint32_t /*sequence*/) {}
  // NOLINTEND(performance-unnecessary-value-param)
  // One of several sequences has ended well. `state`: the state that was stored for it, or null.
  virtual void AppendFinished(const Outcome& /*outcome*/, uint32_t /*sequence*/,
                              const v1::State* /*state*/) {}
  // The note to store with the state of a single sequence with this outcome. Is called without the
  // lock, after the last Append.
  virtual std::string Note(const Outcome& /*outcome*/) const { return ""; }
  // Moves the pending answer, or a part of it, to outgoing(). Returns false if there is none. If
  // the message tells of a stored state, `state` gets the id of that state.
  virtual bool Take(std::string& /*state*/) { return false; }
  virtual void Drop() = 0;
  // The size of what is pending, about: in bytes on the wire, and in memory.
  virtual size_t pending_bytes() const { return 0; }
  virtual size_t held_bytes() const { return 0; }
  // The error when the client is too far behind, or when the answer is too long for one message.
  virtual absl::string_view too_much() const {
    return "slow client: it reads slower than the model writes";
  }

  // ---- The messages to send. Called without the lock, by the thread that may send.

  virtual const google::protobuf::MessageLite& outgoing() = 0;
  // Makes outgoing() a chunk of the sealed state with which the client can resume its stream.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): overrides may move from the argument.
  virtual void SetHandOver(std::string /*chunk*/) {}
  // Makes outgoing() the last message. Returns false if there is none to send. `stored`: the state
  // of a single sequence, or null. REQUIRES: outcome.status is OK.
  virtual bool Finish(const Outcome& outcome, const v1::State* stored) = 0;
  // The size in bytes of the message that Finish makes, if that may be too large for an engine's
  // thread.
  virtual size_t last_message_bytes() const { return 0; }
  // A call that had found its model has ended.
  virtual void Record(const ServedModel& /*model*/, const absl::Status& /*status*/,
                      const Timings& /*timings*/) {}
};

// The error FAILED_PRECONDITION: `model` serves other methods than `method`.
absl::Status WrongTask(const ServedModel& model, Method method);

}  // namespace aft::server
