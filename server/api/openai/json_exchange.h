#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "google/protobuf/wrappers.pb.h"
#include "server/api/openai/json_text.h"
#include "server/call/exchange.h"

namespace aft::server::openai {

// An exchange whose messages are texts: the request a body, the answer one JSON object or
// server-sent events.
class JsonExchange : public Exchange {
 public:
  // `id`: of the request.
  JsonExchange(Method method, std::string id) : method_(method), id_(std::move(id)) {}

  // Whether the answer is a stream of events; known once the call has begun.
  virtual bool streams() const { return false; }
  // What outgoing() holds.
  const std::string& text() const { return outgoing_.value(); }

  Method method() const final { return method_; }
  size_t RequestCost(const RequestBytes& bytes) const final {
    return kBytesPerJsonByte * bytes.size();
  }
  google::protobuf::Message& request() final { return body_; }
  const google::protobuf::MessageLite& outgoing() final { return outgoing_; }
  void Drop() override {}
  bool Finish(const Outcome& /*outcome*/, const v1::State* /*stored*/) override { return true; }

 protected:
  // Seconds since 1970, which answers say when they were created.
  static int64_t SecondsNow() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::seconds>(now).count();
  }

  const Method method_;
  const std::string id_;
  google::protobuf::StringValue body_;
  google::protobuf::StringValue outgoing_;
};

}  // namespace aft::server::openai
