// What a running server does with many clients at once. Flags: --address=A --pid=P and, of
//
//   server_bench streams --streams=10000   as many streams at once: are all of them right?
//   server_bench refusals --rate=2000      of a server with one slot and one place in the queue:
//                                          what do refusals cost?
//   server_bench health --prompts=16       how fast are health checks beside so many prompts?
#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "aft/v1/inference.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace aft {
namespace {

using Clock = std::chrono::steady_clock;
using Stub = v1::InferenceService::Stub;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

double Percentile(std::vector<double> values, double percent) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(percent / 100 * static_cast<double>(values.size() - 1))];
}

struct Options {
  std::string address;
  int pid = 0;
  int streams = 1000;
  int connections = 16;
  uint32_t tokens = 32;
  int rate = 2000;
  int seconds = 10;
  int prompts = 16;
  size_t bytes = 1 << 20;
};

double ResidentMegabytes(int pid) {
  std::ifstream statm("/proc/" + std::to_string(pid) + "/statm");
  int64_t size = 0;
  int64_t resident = 0;
  statm >> size >> resident;
  return static_cast<double>(resident * sysconf(_SC_PAGESIZE)) / (1 << 20);
}

// CPU seconds of the threads that are not the engines' and decoders': gRPC's.
double GrpcCpuSeconds(int pid) {
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(tasks.c_str()), &closedir);
  double ticks = 0;
  while (const dirent* entry = readdir(folder.get())) {
    if (entry->d_name[0] == '.') continue;
    std::ifstream file(tasks + "/" + entry->d_name + "/stat");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const size_t name_end = text.rfind(')');
    if (name_end == std::string::npos || text.find("(aft-") != std::string::npos) continue;
    int64_t user = 0;
    int64_t system = 0;
    std::sscanf(text.c_str() + name_end + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld",
                &user, &system);
    ticks += static_cast<double>(user + system);
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// A connection of its own.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

std::unique_ptr<Stub> Connect(const std::string& address) {
  return v1::InferenceService::NewStub(OpenChannel(address));
}

v1::GenerateRequest Request(uint64_t seed, uint32_t tokens) {
  v1::GenerateRequest request;
  request.set_text("It is a truth universally acknowledged, that");
  request.mutable_sampling()->set_seed(seed);
  request.mutable_stop()->set_max_tokens(tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

// Counts what has ended.
class Latch {
 public:
  void Add() {
    const std::lock_guard lock(mutex_);
    ++open_;
  }
  void Done() {
    const std::lock_guard lock(mutex_);
    if (--open_ == 0) changed_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t open_ = 0;
};

// One generation.
class Stream : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Stream(Stub& stub, const v1::GenerateRequest& request, Latch& latch)
      : latch_(latch), request_(request), start_(Clock::now()) {
    latch_.Add();
    stub.async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    const auto& ids = response_.delta().token_ids();
    if (!ids.empty()) arrivals.push_back(Clock::now());
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& ended) override {
    status = ended;
    total = Seconds(Clock::now() - start_);
    latch_.Done();
  }
  void Cancel() { context_.TryCancel(); }

  std::vector<uint32_t> tokens;
  std::vector<Clock::time_point> arrivals;  // of tokens
  grpc::Status status;
  double total = 0;

 private:
  Latch& latch_;
  const v1::GenerateRequest request_;
  const Clock::time_point start_;
  grpc::ClientContext context_;
  v1::GenerateResponse response_;
};

int RunStreams(const Options& options) {
  constexpr int kSeeds = 16;
  std::vector<std::unique_ptr<Stub>> stubs;
  for (int i = 0; i < options.connections; ++i) stubs.push_back(Connect(options.address));
  std::vector<std::vector<uint32_t>> expected;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Latch latch;
    Stream alone(*stubs[0], Request(seed, options.tokens), latch);
    latch.Wait();
    expected.push_back(alone.tokens);
  }
  const double before = ResidentMegabytes(options.pid);
  std::atomic<bool> over = false;
  double most = 0;
  std::thread watcher([&] {
    while (!over) {
      most = std::max(most, ResidentMegabytes(options.pid));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  Latch latch;
  const auto start = Clock::now();
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < options.streams; ++i) {
    Stub& stub = *stubs[static_cast<size_t>(i % options.connections)];
    streams.push_back(std::make_unique<Stream>(
        stub, Request(static_cast<uint64_t>(i % kSeeds), options.tokens), latch));
  }
  latch.Wait();
  const double seconds = Seconds(Clock::now() - start);
  over = true;
  watcher.join();
  int ok = 0;
  int exact = 0;
  for (int i = 0; i < options.streams; ++i) {
    const Stream& stream = *streams[static_cast<size_t>(i)];
    if (!stream.status.ok()) {
      std::printf("  %d %s\n", stream.status.error_code(), stream.status.error_message().c_str());
      continue;
    }
    ++ok;
    exact += stream.tokens == expected[static_cast<size_t>(i % kSeeds)] ? 1 : 0;
  }
  std::printf(
      "streams %d ok %d exact %d seconds %.1f tokens/s %.0f resident MB before %.0f most %.0f\n",
      options.streams, ok, exact, seconds, static_cast<double>(ok) * options.tokens / seconds,
      before, most);
  return ok == options.streams && exact == ok ? 0 : 1;
}

int RunRefusals(const Options& options) {
  const auto running_stub = Connect(options.address);
  const auto stub = Connect(options.address);
  const auto time = std::chrono::seconds(options.seconds);
  Latch latch;
  Stream running(*running_stub, Request(1, 1'000'000), latch);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  Stream waiting(*running_stub, Request(2, 1'000'000), latch);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const auto idle_start = Clock::now();
  const double idle_begin = GrpcCpuSeconds(options.pid);
  std::this_thread::sleep_for(time);
  const double idle = GrpcCpuSeconds(options.pid) - idle_begin;
  Latch refused_latch;
  std::vector<std::unique_ptr<Stream>> refused;
  const double busy_begin = GrpcCpuSeconds(options.pid);
  const auto start = Clock::now();
  for (int i = 0; Clock::now() - start < time; ++i) {
    std::this_thread::sleep_until(start +
                                  std::chrono::microseconds(1'000'000LL * i / options.rate));
    refused.push_back(std::make_unique<Stream>(*stub, Request(3, 10), refused_latch));
  }
  const double busy = GrpcCpuSeconds(options.pid) - busy_begin;
  refused_latch.Wait();
  running.Cancel();
  waiting.Cancel();
  latch.Wait();
  std::vector<double> times;
  for (const auto& stream : refused) {
    if (stream->status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
      times.push_back(1e3 * stream->total);
    }
  }
  const auto gaps_of = [&](Clock::time_point from) {
    std::vector<double> gaps;
    for (size_t i = 1; i < running.arrivals.size(); ++i) {
      const auto at = running.arrivals[i];
      if (at < from || at > from + time) continue;
      gaps.push_back(1e3 * Seconds(at - running.arrivals[i - 1]));
    }
    return gaps;
  };
  const auto count = static_cast<double>(refused.size());
  std::printf(
      "calls %zu refused %zu, ms p50 %.2f p99 %.2f; CPU of gRPC's threads %.1f us a refusal\n",
      refused.size(), times.size(), Percentile(times, 50), Percentile(times, 99),
      1e6 * (busy - idle) / count);
  for (const auto& [name, gaps] :
       {std::pair("alone", gaps_of(idle_start)), {"beside", gaps_of(start)}}) {
    std::printf("the stream %s: tokens/s %.0f, ms between tokens p50 %.3f p99 %.3f\n", name,
                static_cast<double>(gaps.size()) / static_cast<double>(options.seconds),
                Percentile(gaps, 50), Percentile(gaps, 99));
  }
  return 0;
}

// Asks for the server's health every 5 ms. Returns how long each answer took, in ms.
std::vector<double> CheckHealth(grpc::health::v1::Health::Stub& health, int seconds) {
  std::vector<double> times;
  const auto start = Clock::now();
  for (int i = 0; Clock::now() - start < std::chrono::seconds(seconds); ++i) {
    std::this_thread::sleep_until(start + std::chrono::milliseconds(5LL * i));
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse response;
    const auto begin = Clock::now();
    const grpc::Status status = health.Check(&context, {}, &response);
    times.push_back(1e3 * Seconds(Clock::now() - begin));
    if (status.ok() && response.status() == grpc::health::v1::HealthCheckResponse::SERVING)
      continue;
    std::printf("health: %d %s\n", status.error_code(), status.error_message().c_str());
  }
  return times;
}

int RunHealth(const Options& options) {
  const auto health = grpc::health::v1::Health::NewStub(OpenChannel(options.address));
  const std::vector<double> alone = CheckHealth(*health, options.seconds);
  v1::GenerateRequest request = Request(1, 1);
  request.set_text(std::string(options.bytes, 'a'));
  std::atomic<bool> over = false;
  std::atomic<int> finished = 0;
  std::atomic<int> failed = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < options.prompts; ++i) {
    clients.emplace_back([&] {
      const std::unique_ptr<Stub> stub = Connect(options.address);
      while (!over) {
        Latch latch;
        const Stream stream(*stub, request, latch);
        latch.Wait();
        ++(stream.status.ok() ? finished : failed);
      }
    });
  }
  const std::vector<double> beside = CheckHealth(*health, options.seconds);
  over = true;
  for (std::thread& client : clients) client.join();
  for (const auto& [name, times] : {std::pair("alone", alone), {"beside", beside}}) {
    std::printf("health %s: answers %zu, ms p50 %.2f p99 %.2f most %.2f\n", name, times.size(),
                Percentile(times, 50), Percentile(times, 99), Percentile(times, 100));
  }
  std::printf("prompts of %zu bytes: finished %d failed %d\n", options.bytes, finished.load(),
              failed.load());
  return failed == 0 ? 0 : 1;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("What a running server does with many clients at once.");
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--address", options.address)->required();
  app.add_option("--pid", options.pid)->required();
  CLI::App* const streams = app.add_subcommand("streams");
  streams->add_option("--streams", options.streams);
  streams->add_option("--connections", options.connections);
  streams->add_option("--tokens", options.tokens);
  CLI::App* const refusals = app.add_subcommand("refusals");
  refusals->add_option("--rate", options.rate);
  refusals->add_option("--seconds", options.seconds);
  CLI::App* const health = app.add_subcommand("health");
  health->add_option("--prompts", options.prompts);
  health->add_option("--bytes", options.bytes);
  health->add_option("--seconds", options.seconds);
  CLI11_PARSE(app, argc, argv);
  if (health->parsed()) return RunHealth(options);
  return streams->parsed() ? RunStreams(options) : RunRefusals(options);
}

}  // namespace
}  // namespace aft

int main(int argc, char** argv) { return aft::Main(argc, argv); }
