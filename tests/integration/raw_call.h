#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "grpcpp/grpcpp.h"
#include "tests/integration/server_fixture.h"

namespace aft::server {

// Sends one request's bytes to any method and reads its answers when the test asks. On the wire
// every method is a stream of messages, so this client can call all of them.
class RawCall {
 public:
  RawCall(grpc::Channel& channel, const char* path, const std::string& request,
          const TestServer::Prepare& prepare = {}) {
    if (prepare) prepare(*context_);
    const grpc::internal::RpcMethod method(path, grpc::internal::RpcMethod::BIDI_STREAMING);
    stream_.reset(
        grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
            &channel, method, context_.get()));
    const grpc::Slice slice(request);
    stream_->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions());
  }

  // Reads an answer. Returns false if there is no further one.
  bool Next(std::string& answer) {
    grpc::ByteBuffer buffer;
    if (!stream_->Read(&buffer)) return false;
    std::vector<grpc::Slice> slices;
    AFT_CHECK(buffer.Dump(&slices).ok());
    answer.clear();
    for (const grpc::Slice& slice : slices) {
      answer.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    return true;
  }
  // Reads the remaining answers.
  grpc::Status Finish() {
    std::string answer;
    while (Next(answer)) {
    }
    return stream_->Finish();
  }

  grpc::ClientContext& context() { return *context_; }
  const grpc::ClientContext& context() const { return *context_; }

 private:
  std::unique_ptr<grpc::ClientContext> context_ = std::make_unique<grpc::ClientContext>();
  std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream_;
};

}  // namespace aft::server
