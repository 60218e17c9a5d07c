#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "tests/integration/methods/call_contract_cases.h"

// Clients of one call, over gRPC or HTTP.
namespace aft::server {

// What a request is sent with. The headers are gRPC's metadata or HTTP's headers.
struct CallTerms {
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::optional<std::chrono::system_clock::time_point> deadline = {};  // only over gRPC
};

// How a call ended. With kInferStream, `error` is the message of an error response, or "" if there
// was none.
struct CallEnding {
  grpc::Status status;
  std::string error;
  std::string error_id;
  int responses = 0;  // without the error
};

// One request as its transport sends it.
class CallWire {
 public:
  virtual ~CallWire() = default;

  // Reads a response. Returns false if there is no further one.
  virtual bool Next(CallEnding& ending) = 0;
  // REQUIRES: Next has returned false.
  virtual grpc::Status Status() = 0;
  virtual void Cancel() = 0;
  // Waits until the server has read all that the connection has sent. It has probably acted on it.
  virtual void WaitUntilRead() const = 0;
  // Over HTTP, Initial reads the headers of an answer and Trailing those of a refusal.
  virtual std::string Initial(const std::string& key) const = 0;
  virtual std::string Trailing(const std::string& key) const = 0;
};

// One request and its responses, read as far as the test says.
class ContractCall {
 public:
  using End = CallEnding;

  // `id` is sent as x-request-id, and in messages of the Open Inference Protocol too. If it is
  // empty, none is sent.
  ContractCall(std::string id, std::unique_ptr<CallWire> wire)
      : id_(std::move(id)), wire_(std::move(wire)) {}

  // Reads a response. Returns false if there is no further one.
  bool Next() { return wire_->Next(end_); }
  // Reads the remaining responses.
  End Finish() {
    while (Next()) {
    }
    end_.status = wire_->Status();
    return end_;
  }
  void Cancel() { wire_->Cancel(); }
  void WaitUntilRead() const { wire_->WaitUntilRead(); }

  const std::string& id() const { return id_; }
  // The value of the key, or "" if the key is missing or occurs several times.
  std::string Initial(const std::string& key) const { return wire_->Initial(key); }
  std::string Trailing(const std::string& key) const { return wire_->Trailing(key); }

 private:
  std::string id_;
  End end_;
  std::unique_ptr<CallWire> wire_;
};

// Sends `message` of the case with `terms` over a new connection to `address`. With `unread` the
// connection's window is small, so that it is soon full.
std::unique_ptr<CallWire> SendCall(const std::string& address, const Case& one,
                                   const std::string& message, const CallTerms& terms, bool unread);

}  // namespace aft::server
