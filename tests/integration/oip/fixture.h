#pragma once

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "inference/grpc_service.grpc.pb.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/process.h"

// Requests and answers of inference.GRPCInferenceService as a client writes and reads them.
namespace aft::server {

using inference::ModelInferRequest;
using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;

template <typename T>
std::string RawOf(const std::vector<T>& values) {
  std::string raw(values.size() * sizeof(T), '\0');
  if (!raw.empty()) std::memcpy(raw.data(), values.data(), raw.size());
  return raw;
}
inline std::string RawText(const std::string& text) {
  return RawOf<uint32_t>({static_cast<uint32_t>(text.size())}) + text;
}

// Runs a script of tests/integration/oip with NVIDIA's tritonclient from PyPI against `server`,
// with `more` arguments. AFT_TRITONCLIENT names the folder where it is installed with its
// dependencies. Without it the test is skipped.
inline void RunTritonclient(const std::string& script, const Server& server,
                            const std::vector<std::string>& more = {}) {
  const char* const site = std::getenv("AFT_TRITONCLIENT");
  if (site == nullptr) GTEST_SKIP() << "no tritonclient: AFT_TRITONCLIENT is not set";
  std::vector<std::string> command = {"python3", "tests/integration/oip/" + script,
                                      server.address()};
  command.insert(command.end(), more.begin(), more.end());
  const client::Ended python = client::RunToEnd(
      command, "",
      {std::string("PYTHONPATH=") + site, "PYTHONDONTWRITEBYTECODE=1", "no_grpc_proxy=127.0.0.1"});
  EXPECT_EQ(python.code, 0) << python.err;
}

// Builds a request with raw contents.
class InferBuilder {
 public:
  explicit InferBuilder(const std::string& model = "fake") { request_.set_model_name(model); }

  InferBuilder& Raw(const std::string& name, const std::string& datatype,
                    const std::vector<int64_t>& shape, const std::string& bytes) {
    auto& input = *request_.add_inputs();
    input.set_name(name);
    input.set_datatype(datatype);
    for (const int64_t size : shape) input.add_shape(size);
    request_.add_raw_input_contents(bytes);
    return *this;
  }
  InferBuilder& Text(const std::string& name, const std::string& text) {
    return Raw(name, "BYTES", {1}, RawText(text));
  }
  InferBuilder& Flag(const std::string& name, bool value = true) {
    return Raw(name, "BOOL", {1}, std::string(1, value ? '\1' : '\0'));
  }
  InferBuilder& Ids(const std::vector<int64_t>& ids) {
    return Raw("input_ids", "INT64", {static_cast<int64_t>(ids.size())}, RawOf(ids));
  }
  // Asks for exactly `count` tokens.
  InferBuilder& Tokens(int count, int seed = 7) {
    return Text("sampling_parameters", "{\"max_tokens\": \"" + std::to_string(count) +
                                           "\", \"seed\": " + std::to_string(seed) +
                                           ", \"ignore_eos\": true}");
  }
  InferBuilder& Id(const std::string& id) {
    request_.set_id(id);
    return *this;
  }
  inference::InferParameter& Parameter(const std::string& name) {
    return (*request_.mutable_parameters())[name];
  }
  InferBuilder& Output(const std::string& name) {
    request_.add_outputs()->set_name(name);
    return *this;
  }
  ModelInferRequest& request() { return request_; }

 private:
  ModelInferRequest request_;
};

// The output with this name. If there is none, the test fails and the result is empty.
inline const std::string& RawOutput(const ModelInferResponse& response, const std::string& name) {
  static const std::string kNone;
  EXPECT_EQ(response.outputs_size(), response.raw_output_contents_size());
  for (int i = 0; i < response.outputs_size(); ++i) {
    if (response.outputs(i).name() == name) return response.raw_output_contents(i);
  }
  ADD_FAILURE() << "no output " << name << " in " << response.ShortDebugString();
  return kNone;
}
inline std::string TextOutput(const ModelInferResponse& response, const std::string& name) {
  const std::string& raw = RawOutput(response, name);
  if (raw.size() < 4) return "";
  EXPECT_EQ(raw.substr(0, 4), RawText(raw.substr(4)).substr(0, 4));
  return raw.substr(4);
}
template <typename T>
std::vector<T> Numbers(const ModelInferResponse& response, const std::string& name) {
  const std::string& raw = RawOutput(response, name);
  EXPECT_EQ(raw.size() % sizeof(T), 0U);
  std::vector<T> values(raw.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), raw.data(), values.size() * sizeof(T));
  return values;
}
inline std::vector<int64_t> ShapeOf(const ModelInferResponse& response, const std::string& name) {
  for (const auto& output : response.outputs()) {
    if (output.name() == name) return {output.shape().begin(), output.shape().end()};
  }
  return {};
}
inline std::vector<std::string> OutputNames(const ModelInferResponse& response) {
  std::vector<std::string> names;
  for (const auto& output : response.outputs()) names.push_back(output.name());
  return names;
}

// A server and a stub for it.
class OipServer : public TestServer {
 public:
  using TestServer::TestServer;

  inference::GRPCInferenceService::Stub& oip() { return *stub_; }

  struct Answer {
    grpc::Status status;
    ModelInferResponse response;
    std::unique_ptr<grpc::ClientContext> context = std::make_unique<grpc::ClientContext>();
  };
  Answer Infer(const ModelInferRequest& request) {
    Answer answer;
    answer.status = oip().ModelInfer(answer.context.get(), request, &answer.response);
    return answer;
  }

 private:
  const std::unique_ptr<inference::GRPCInferenceService::Stub> stub_ =
      inference::GRPCInferenceService::NewStub(Connect(server().address()));
};

// A bad request and the beginning of its error.
struct Fault {
  const char* error;
  InferBuilder builder;
};
// The requests must be refused before an encoder has work, and must leave no memory in use.
inline void ExpectRefused(OipServer& server, std::vector<Fault> faults) {
  for (Fault& fault : faults) {
    EXPECT_THAT(server.Infer(fault.builder.request()).status,
                StatusIs(absl::StatusCode::kInvalidArgument, ::testing::StartsWith(fault.error)))
        << fault.builder.request().ShortDebugString();
  }
  EXPECT_TRUE(server.encoder_control().batches().empty());
  server.WaitForMetric(kMemoryUsed, 0);
}

// One call of ModelStreamInfer.
class InferStream {
 public:
  using Prepare = std::function<void(grpc::ClientContext&)>;

  explicit InferStream(inference::GRPCInferenceService::Stub& stub, const Prepare& prepare = {}) {
    if (prepare) prepare(context_);
    stream_ = stub.ModelStreamInfer(&context_);
  }

  bool Send(const ModelInferRequest& request) { return stream_->Write(request); }
  bool Next(ModelStreamInferResponse& response) { return stream_->Read(&response); }
  // Half-closes the stream and reads the remaining responses.
  std::vector<ModelStreamInferResponse> ReadAll() {
    stream_->WritesDone();
    std::vector<ModelStreamInferResponse> responses;
    ModelStreamInferResponse response;
    while (Next(response)) responses.push_back(response);
    return responses;
  }
  void HalfClose() { stream_->WritesDone(); }
  // REQUIRES: Next has returned false.
  grpc::Status Finish() { return stream_->Finish(); }
  grpc::ClientContext& context() { return context_; }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<ModelInferRequest, ModelStreamInferResponse>> stream_;
};

inline bool IsFinal(const ModelStreamInferResponse& response) {
  const auto& parameters = response.infer_response().parameters();
  const auto found = parameters.find("triton_final_response");
  EXPECT_NE(found, parameters.end()) << response.ShortDebugString();
  return found != parameters.end() && found->second.bool_param();
}

}  // namespace aft::server
