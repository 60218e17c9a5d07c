// Measures the messages a second that arrive from the same streams through Generate and through
// ModelStreamInfer.
//
//   protocol_load --address=A --streams=8 --seconds=10 [--infer]
//
// Prints {"messages": N, "tokens": N, "seconds": S, "client_cpu_seconds": S}. Closed loop: each
// stream begins anew when it has ended; each has a connection's share, and with --infer a call of
// its own for all of its requests, as tritonclient does it.
#include <grpcpp/grpcpp.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "aft/v1/inference.grpc.pb.h"
#include "inference/grpc_service.grpc.pb.h"

namespace aft {
namespace {

constexpr int kStreamsAConnection = 64;
constexpr char kPrompt[] = "It is a ";

struct Options {
  std::string address;
  int streams = 1;
  int seconds = 10;
  int tokens = 512;
  bool infer = false;
};

struct Counts {
  std::atomic<uint64_t> messages = 0;
  std::atomic<uint64_t> tokens = 0;
  std::atomic<bool> over = false;
};

// Ends the program if a call fails, because it would otherwise report the speed of failures.
void Expect(bool ok, const std::string& what) {
  if (ok) return;
  std::fprintf(stderr, "protocol_load: %s\n", what.c_str());
  std::exit(1);
}

class GenerateLoop final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  GenerateLoop(const std::shared_ptr<grpc::Channel>& channel, const Options& options,
               Counts& counts)
      : stub_(v1::InferenceService::NewStub(channel)), counts_(counts) {
    request_.set_text(kPrompt);
    request_.mutable_stop()->set_max_tokens(static_cast<uint32_t>(options.tokens));
    request_.mutable_stop()->set_ignore_eos(true);
    Begin();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (response_.has_delta()) {
      ++counts_.messages;
      counts_.tokens += static_cast<uint64_t>(response_.delta().token_ids_size());
    }
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    if (counts_.over) return done_.set_value();
    Expect(status.ok(), status.error_message());
    Begin();
  }

  void Cancel() { context_->TryCancel(); }
  void Wait() { done_.get_future().wait(); }

 private:
  void Begin() {
    context_ = std::make_unique<grpc::ClientContext>();
    stub_->async()->Generate(context_.get(), &request_, this);
    StartRead(&response_);
    StartCall();
  }

  const std::unique_ptr<v1::InferenceService::Stub> stub_;
  Counts& counts_;
  v1::GenerateRequest request_;
  v1::GenerateResponse response_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::promise<void> done_;
};

inference::ModelInferRequest::InferInputTensor* AddInput(inference::ModelInferRequest& request,
                                                         const std::string& name,
                                                         const std::string& datatype) {
  auto* const input = request.add_inputs();
  input->set_name(name);
  input->set_datatype(datatype);
  input->add_shape(1);
  return input;
}

class InferLoop final : public grpc::ClientBidiReactor<inference::ModelInferRequest,
                                                       inference::ModelStreamInferResponse> {
 public:
  InferLoop(const std::shared_ptr<grpc::Channel>& channel, const std::string& model,
            const Options& options, Counts& counts)
      : stub_(inference::GRPCInferenceService::NewStub(channel)), counts_(counts) {
    request_.set_model_name(model);
    request_.set_id("1");
    AddInput(request_, "text_input", "BYTES")->mutable_contents()->add_bytes_contents(kPrompt);
    AddInput(request_, "max_tokens", "INT32")->mutable_contents()->add_int_contents(options.tokens);
    AddInput(request_, "ignore_eos", "BOOL")->mutable_contents()->add_bool_contents(true);
    // As perf_analyzer asks for it, so that the end of a request is seen.
    (*request_.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
    stub_->async()->ModelStreamInfer(&context_, this);
    StartWrite(&request_);
    StartRead(&response_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    Expect(response_.error_message().empty(), response_.error_message());
    const auto& parameters = response_.infer_response().parameters();
    const auto final = parameters.find("triton_final_response");
    Expect(final != parameters.end(), "a response without triton_final_response");
    if (!final->second.bool_param()) {
      ++counts_.messages;
      ++counts_.tokens;
    } else if (!counts_.over) {
      StartWrite(&request_);
    }
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    Expect(counts_.over, status.error_message());
    done_.set_value();
  }

  void Cancel() { context_.TryCancel(); }
  void Wait() { done_.get_future().wait(); }

 private:
  const std::unique_ptr<inference::GRPCInferenceService::Stub> stub_;
  Counts& counts_;
  grpc::ClientContext context_;
  inference::ModelInferRequest request_;
  inference::ModelStreamInferResponse response_;
  std::promise<void> done_;
};

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::vector<std::shared_ptr<grpc::Channel>> Connect(const Options& options) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < options.streams; i += kStreamsAConnection) {
    channels.push_back(
        grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments));
  }
  return channels;
}

// Loop: made from a channel and `more`.
template <typename Loop, typename... More>
void Measure(const Options& options, const More&... more) {
  const auto channels = Connect(options);
  Counts counts;
  std::vector<std::unique_ptr<Loop>> loops;
  for (int i = 0; i < options.streams; ++i) {
    loops.push_back(std::make_unique<Loop>(channels[static_cast<size_t>(i / kStreamsAConnection)],
                                           more..., options, counts));
  }
  std::this_thread::sleep_for(std::chrono::seconds(1));  // warm
  const uint64_t messages = counts.messages;
  const uint64_t tokens = counts.tokens;
  const double cpu = CpuSeconds();
  const auto start = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::seconds(options.seconds));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf(
      "{\"messages\": %lu, \"tokens\": %lu, \"seconds\": %.3f, \"client_cpu_seconds\": %.3f}\n",
      counts.messages - messages, counts.tokens - tokens, seconds.count(), CpuSeconds() - cpu);
  counts.over = true;
  for (const auto& loop : loops) loop->Cancel();
  for (const auto& loop : loops) loop->Wait();
}

// The only model of the server.
std::string FindModel(const Options& options) {
  const auto stub = inference::GRPCInferenceService::NewStub(Connect(options)[0]);
  grpc::ClientContext context;
  inference::RepositoryIndexResponse index;
  const grpc::Status status = stub->RepositoryIndex(&context, {}, &index);
  Expect(status.ok() && index.models_size() == 1, "the server must have one model");
  return index.models(0).name();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("The same streams through Generate and through ModelStreamInfer.");
  app.add_option("--address", options.address)->required();
  app.add_option("--streams", options.streams)->check(CLI::PositiveNumber);
  app.add_option("--seconds", options.seconds)->check(CLI::PositiveNumber);
  app.add_option("--tokens", options.tokens)->check(CLI::PositiveNumber);
  app.add_flag("--infer", options.infer, "through ModelStreamInfer");
  CLI11_PARSE(app, argc, argv);
  if (options.infer) {
    Measure<InferLoop>(options, FindModel(options));
  } else {
    Measure<GenerateLoop>(options);
  }
  return 0;
}

}  // namespace
}  // namespace aft

int main(int argc, char** argv) { return aft::Main(argc, argv); }
