// Shows what gRPC alone delivers. This callback server has no model, engine or admission. It
// answers Generate with the same messages as aft-server, one token each, as fast as they can be
// written.
//
//   bare_server --ready_file=F      writes its address, HOST:PORT, to F; ends with SIGTERM

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "CLI/CLI.hpp"
#include "aft/v1/inference.grpc.pb.h"
#include "aft/v1/models.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace aft {
namespace {

class Call final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  explicit Call(const v1::GenerateRequest& request) : tokens_(request.stop().max_tokens()) {
    auto& started = *response_.mutable_started();
    started.set_model("bare");
    started.set_seed(request.sampling().seed());
    started.set_prompt_tokens(static_cast<uint32_t>(request.text().size()));
    StartWrite(&response_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    if (written_ == tokens_) {
      auto& finished = *response_.mutable_finished();
      finished.set_reason(v1::FINISH_REASON_LENGTH);
      finished.mutable_usage()->set_generated_tokens(tokens_);
      return StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
    }
    auto& delta = *response_.mutable_delta();
    delta.set_first_index(written_);
    delta.clear_token_ids();
    delta.add_token_ids('a' + written_ % 26);
    delta.set_text(std::string(1, static_cast<char>('a' + written_ % 26)));
    ++written_;
    StartWrite(&response_);
  }
  void OnDone() override { delete this; }

 private:
  const uint32_t tokens_;
  uint32_t written_ = 0;
  v1::GenerateResponse response_;
};

class Service final : public v1::InferenceService::CallbackService {
  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* /*context*/, const v1::GenerateRequest* request) override {
    return new Call(*request);
  }
};

// aftload calls this method first.
class Models final : public v1::ModelService::CallbackService {
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListRequest* /*request*/,
                                 v1::ListResponse* /*response*/) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

int Main(int argc, char** argv) {
  std::string ready_file;
  CLI::App app("What gRPC alone delivers.");
  app.add_option("--ready_file", ready_file)->required();
  CLI11_PARSE(app, argc, argv);
  sigset_t signals;  // blocked before gRPC starts threads, which inherit that
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  Service service;
  Models models;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  builder.RegisterService(&models);
  const auto server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  const std::string partial = ready_file + ".partial";
  std::ofstream(partial) << "127.0.0.1:" << port << '\n';
  if (std::rename(partial.c_str(), ready_file.c_str()) != 0) return 1;
  int signal = 0;
  sigwait(&signals, &signal);
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}

}  // namespace
}  // namespace aft

int main(int argc, char** argv) { return aft::Main(argc, argv); }
