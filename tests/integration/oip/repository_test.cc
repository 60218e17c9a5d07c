// Models that are added, changed and removed while the server runs, over real gRPC, with fake
// models.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/oip/repository_fixture.h"
#include "tests/support/captured_log.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/process.h"

namespace aft::server {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(OipRepositoryTest, LoadsAndUnloadsNeedRepositoryControl) {
  config_.repository.control = "none";
  Start();
  const auto off = StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("repository.control"));
  EXPECT_THAT(Load(), off);
  EXPECT_THAT(Unload(), off);
  EXPECT_EQ(Infer(), "1");
}

TEST_F(OipRepositoryTest, OnlyAdminsMayLoadAndOnlyModelsThatTheyMayUse) {
  KnowClients("models: 'm'");
  config_.repository.control = "admin";
  AddVersion("n/1");
  Start();
  EXPECT_THAT(Load("m"), StatusIs(absl::StatusCode::kUnauthenticated, _));
  EXPECT_THAT(Load("m", "token"), StatusIs(absl::StatusCode::kPermissionDenied,
                                           "client \"b\" is no admin in security.clients_file"));
  EXPECT_THAT(Load("n", "admin"),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("may not use model \"n\"")));
  EXPECT_TRUE(Load("m", "admin").ok());
}

TEST_F(OipRepositoryTest, OnlyAdminsReadThePathsInErrors) {
  KnowClients();
  config_.repository.control = "anyone";
  Start();
  AddVersion("m/2/cut");
  const auto errors = [&](const std::string& token) {
    const auto with_token = [&] {
      auto context = std::make_unique<grpc::ClientContext>();
      context->AddMetadata("authorization", "Bearer " + token);
      return context;
    };
    std::vector<std::string> all = {Load("m", token).error_message()};
    v1::ListResponse list;
    EXPECT_TRUE(server_->models().List(with_token().get(), {}, &list).ok());
    for (const auto& version : list.models(0).versions()) all.push_back(version.error());
    v1::GetRequest get;
    get.set_name("m");
    get.set_version("2");
    v1::GetResponse got;
    EXPECT_TRUE(server_->models().Get(with_token().get(), get, &got).ok());
    all.push_back(got.model().error());
    inference::RepositoryIndexResponse index;
    EXPECT_TRUE(oip().RepositoryIndex(with_token().get(), {}, &index).ok());
    for (const auto& model : index.models()) all.push_back(model.reason());
    return absl::StrJoin(all, "\n");
  };
  const std::string path = folder_.File("m/2/weights");
  EXPECT_THAT(errors("admin"), HasSubstr(path + ": is cut"));
  EXPECT_THAT(errors("token"), AllOf(HasSubstr("weights: is cut"), Not(HasSubstr(folder_.path()))));
}

TEST_F(OipRepositoryTest, NothingIsUploaded) {
  Start();
  const auto refused = [&](const std::string& parameter, const std::string& why) {
    auto request = Order<inference::RepositoryModelLoadRequest>("m");
    (*request.mutable_parameters())[parameter].set_bytes_param(std::string(5000, 'x'));
    EXPECT_THAT(Load(request),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(StartsWith("parameters[\"" + parameter + "\"]: "), HasSubstr(why))));
  };
  refused("config", "nothing can be uploaded");
  refused("file:1/model.safetensors", "nothing can be uploaded");
  refused("unload_dependents", "is not known");
  auto unload = Order<inference::RepositoryModelUnloadRequest>("m");
  (*unload.mutable_parameters())["other"].set_bool_param(true);
  EXPECT_THAT(Unload(unload), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("other")));
  unload.mutable_parameters()->clear();
  (*unload.mutable_parameters())["unload_dependents"].set_bool_param(true);
  unload.set_repository_name("some");
  EXPECT_THAT(Unload(unload), StatusIs(absl::StatusCode::kUnimplemented, _));
  EXPECT_EQ(Infer(), "1");
  unload.clear_repository_name();
  EXPECT_TRUE(Unload(unload).ok());
  for (const char* name : {"", "..", "../m", "m/1"}) {
    EXPECT_THAT(Load(name),
                StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("model_name: ")))
        << name;
  }
  EXPECT_THAT(Load("other"), StatusIs(absl::StatusCode::kNotFound, _));
}

// gRPC repeats a refusal for lack of space. A load that is repeated reads the weights again.
TEST_F(OipRepositoryTest, ALoadThatFailsForLackOfMemoryMustNotBeRetried) {
  Start();
  AddVersion("m/2/large");
  grpc::ClientContext context;
  inference::RepositoryModelLoadResponse response;
  EXPECT_THAT(oip().RepositoryModelLoad(&context, Order<inference::RepositoryModelLoadRequest>("m"),
                                        &response),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("not enough memory")));
  EXPECT_EQ(RetryHintOf(context), "-1");
  EXPECT_EQ(Infer(), "1");
}

TEST_F(OipRepositoryTest, HealthListsAtMostAHundredServices) {
  for (int i = 0; i < 100; ++i) AddVersion(absl::StrCat("other", i, "/1/bad"));
  Start();
  grpc::ClientContext context;
  grpc::health::v1::HealthListResponse response;
  EXPECT_THAT(server_->health().List(&context, {}, &response),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("more than 100 services")));
  EXPECT_EQ(RetryHintOf(context), "-1");
}

TEST_F(OipRepositoryTest, ANameThatNoModelCanHaveIsNotRepeated) {
  Start();
  const CapturedLog log;
  const std::string name(1'000'000, 'x');
  EXPECT_THAT(Load(name), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1000000 bytes")));
  EXPECT_THAT(Unload(name), StatusIs(absl::StatusCode::kInvalidArgument, _));
  const std::string lines = log.Text();
  EXPECT_THAT(lines, AllOf(HasSubstr("event=repository.load "), HasSubstr("repository.unload ")));
  EXPECT_LT(lines.size(), 2000U);
}

// The names have 12 kB. A client of gRPC takes at most 8 KiB of metadata, the status included.
TEST_F(OipRepositoryTest, AnErrorThatNamesManyModelsArrives) {
  for (int i = 100; i < 200; ++i) {
    AddVersion(absl::StrCat(std::string(117, 'n'), i, "/1/bad"));
  }
  Start();
  EXPECT_THAT(server_->Infer(InferBuilder("other").Text("text_input", "x").request()).status,
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("there is \"m\", \"nnn"), HasSubstr(" more bytes)"))));
}

TEST_F(OipRepositoryTest, AskingAboutAModelCountsNoRefusal) {
  Start();
  ASSERT_TRUE(Unload().ok());
  EXPECT_FALSE(Ready(""));
  const auto not_loaded = StatusIs(absl::StatusCode::kUnavailable, HasSubstr("not loaded"));
  const auto ask = [this](auto method, auto request, auto response) {
    grpc::ClientContext context;
    request.set_name("m");
    return (oip().*method)(&context, request, &response);
  };
  using Oip = inference::GRPCInferenceService::Stub;
  EXPECT_THAT(ask(&Oip::ModelMetadata, inference::ModelMetadataRequest(),
                  inference::ModelMetadataResponse()),
              not_loaded);
  EXPECT_THAT(
      ask(&Oip::ModelConfig, inference::ModelConfigRequest(), inference::ModelConfigResponse()),
      not_loaded);
  grpc::ClientContext context;
  v1::StateServiceImportResponse response;
  const auto writer = server_->states().Import(&context, &response);
  v1::StateServiceImportRequest request;
  request.set_model("m");
  writer->Write(request);
  EXPECT_THAT(writer->Finish(), not_loaded);
  EXPECT_EQ(server_->Metric("aft_rejected_total"), 0);
  EXPECT_THAT(Infer(), HasSubstr("not loaded"));
  EXPECT_EQ(server_->Metric("aft_rejected_total"), 1);
}

TEST_F(OipRepositoryTest, AnImportUnderWayHoldsNoModel) {
  config_.limits.write_stall = std::chrono::minutes(5);
  Start();
  grpc::ClientContext context;
  v1::StateServiceImportResponse response;
  const auto writer = server_->states().Import(&context, &response);
  v1::StateServiceImportRequest request;
  request.set_model("m");
  request.set_bytes(100);
  request.mutable_store();
  request.set_chunk("x");
  ASSERT_TRUE(writer->Write(request));
  request.Clear();
  request.set_chunk("y");
  ASSERT_TRUE(writer->Write(request));
  // The server has taken the first message: it has room for all bytes, and holds the second
  // message.
  server_->WaitForMetric("aft_memory_used_bytes",
                         (16 << 10) + 100 + 3 * static_cast<double>(request.ByteSizeLong()));
  EXPECT_TRUE(Unload().ok());  // returns after the model is unloaded
  EXPECT_EQ(alive_, 0);
  request.set_chunk(std::string(98, 'z'));
  writer->Write(request);
  EXPECT_THAT(writer->Finish(),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("chunk: not a state")));
}

TEST_F(OipRepositoryTest, RequestsGetTheVersionThatTheyName) {
  AddVersion("m/2");
  config_.repository.latest_versions = 2;
  Start();
  EXPECT_THAT(Index(), ElementsAre("m 2 READY ", "m 1 READY "));
  EXPECT_TRUE(Ready(""));
  EXPECT_TRUE(Ready("1"));
  EXPECT_FALSE(Ready("3"));
  EXPECT_EQ(Infer(), "2");
  EXPECT_EQ(Infer("1"), "1");
  EXPECT_EQ(Infer("2"), "2");
  EXPECT_THAT(Infer("3"), StartsWith("model_version: model \"m\" has version \"2\", \"1\", not"));
  EXPECT_EQ(server_->Metric(RequestsTotal("NOT_FOUND", "ModelInfer", "m")), 1);
  EXPECT_EQ(Run(Native()).started.model_version(), "2");
  EXPECT_EQ(Run(Native("1")).started.model_version(), "1");
  GenerateStream none(server_->inference(), Native("3"));
  EXPECT_THAT(none.Finish(), StatusIs(absl::StatusCode::kNotFound, StartsWith("model_version: ")));
  GenerateStream longest(server_->inference(), Native(std::string(129, '1')));
  EXPECT_THAT(longest.Finish(),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("model_version: ")));

  grpc::ClientContext context;
  inference::ModelMetadataRequest metadata;
  metadata.set_name("m");
  inference::ModelMetadataResponse described;
  ASSERT_TRUE(oip().ModelMetadata(&context, metadata, &described).ok());
  EXPECT_THAT(described.versions(), ElementsAre("2", "1"));

  grpc::ClientContext get;
  v1::GetRequest asked;
  asked.set_name("m");
  asked.set_version("1");
  v1::GetResponse got;
  ASSERT_TRUE(server_->models().Get(&get, asked, &got).ok());
  EXPECT_EQ(got.model().version(), "1");
  ASSERT_EQ(got.model().versions_size(), 2);
  EXPECT_EQ(got.model().versions(0).version(), "2");
  EXPECT_EQ(got.model().versions(0).state(), v1::MODEL_STATE_READY);
}

TEST_F(OipRepositoryTest, MetadataNamesOnlyVersionsThatServe) {
  Start();
  AddVersion("m/2/bad");
  EXPECT_FALSE(Load().ok());
  ASSERT_EQ(Index().size(), 2U);
  grpc::ClientContext context;
  inference::ModelMetadataRequest metadata;
  metadata.set_name("m");
  inference::ModelMetadataResponse described;
  ASSERT_TRUE(oip().ModelMetadata(&context, metadata, &described).ok());
  EXPECT_THAT(described.versions(), ElementsAre("1"));
}

TEST_F(OipRepositoryTest, StatisticsAreSeparateForEachVersion) {
  AddVersion("m/2");
  config_.repository.latest_versions = 2;
  Start();
  Infer("1");
  Infer("2");
  Infer("2");
  const auto statistics = [&](const std::string& version) {
    grpc::ClientContext context;
    inference::ModelStatisticsRequest request;
    request.set_name("m");
    request.set_version(version);
    inference::ModelStatisticsResponse response;
    EXPECT_TRUE(oip().ModelStatistics(&context, request, &response).ok());
    std::vector<std::string> found;
    for (const auto& model : response.model_stats()) {
      found.push_back(absl::StrCat(model.version(), ": ", model.inference_count(), " in ",
                                   model.execution_count()));
    }
    return found;
  };
  EXPECT_THAT(statistics(""), ElementsAre("2: 2 in 4", "1: 1 in 2"));
  EXPECT_THAT(statistics("1"), ElementsAre("1: 1 in 2"));
  AddVersion("m/3");
  ASSERT_TRUE(Load().ok());
  Infer();
  EXPECT_THAT(statistics(""), ElementsAre("3: 1 in 2", "2: 2 in 4"));
  std::filesystem::remove_all(folder_.File("m/2"));
  std::filesystem::remove_all(folder_.File("m/3"));
  ASSERT_TRUE(Load().ok());
  EXPECT_THAT(statistics(""), ElementsAre("1: 0 in 0"));  // its requests were forgotten
}

TEST_F(OipRepositoryTest, AStateContinuesWithTheVersionThatMadeIt) {
  Start();
  v1::GenerateRequest first = Native();
  first.mutable_store();
  const std::string state = Run(first).finished.state().id();
  const GenerateStream stream = Run(Native());
  AddVersion("m/2");
  config_.repository.latest_versions = 2;
  ASSERT_TRUE(server_->server().Reload(config_).ok());
  ASSERT_TRUE(Load().ok());  // waits for the reload
  v1::GenerateRequest next = Native();
  next.mutable_previous()->set_state_id(state);
  EXPECT_EQ(Run(next).started.model_version(), "1");
  EXPECT_EQ(Run(next).started.fingerprint(), 1U);
  v1::GenerateRequest resumed = Native();
  resumed.mutable_resume()->set_fingerprint(1);
  resumed.mutable_resume()->set_numerics(stream.started.numerics());
  resumed.mutable_resume()->add_token_ids(static_cast<uint32_t>(stream.tokens.at(0)));
  EXPECT_EQ(Run(resumed).started.model_version(), "1");
  EXPECT_EQ(Run(Native()).started.model_version(), "2");

  // A request that names another version gets that version and its error.
  next.set_model_version("2");
  GenerateStream other(server_->inference(), next);
  EXPECT_THAT(other.Finish(),
              StatusIs(absl::StatusCode::kFailedPrecondition, StartsWith("previous: ")));
  resumed.set_model_version("2");
  GenerateStream another(server_->inference(), resumed);
  EXPECT_THAT(another.Finish(),
              StatusIs(absl::StatusCode::kFailedPrecondition, StartsWith("resume.fingerprint: ")));
  // A request for a version that is no longer loaded gets the latest version and its error.
  AddVersion("m/3");
  ASSERT_TRUE(Load().ok());
  next.clear_model_version();
  GenerateStream late(server_->inference(), next);
  EXPECT_THAT(late.Finish(),
              StatusIs(absl::StatusCode::kFailedPrecondition, StartsWith("previous: ")));
}

TEST_F(OipRepositoryTest, AnUnloadedModelIsNotServedAndTheServerIsReady) {
  AddVersion("n/1");
  Start();
  ASSERT_TRUE(Unload().ok());
  EXPECT_EQ(alive_, 1);
  EXPECT_THAT(Index(), ElementsAre("m 1 UNAVAILABLE unloaded", "n 1 READY "));
  EXPECT_EQ(Infer(), "model \"m\" is not loaded");
  using Status = grpc::health::v1::HealthCheckResponse;
  EXPECT_EQ(server_->Health("aft.v1.InferenceService/m"), Status::NOT_SERVING);
  EXPECT_EQ(server_->Health("aft.v1.InferenceService/n"), Status::SERVING);
  EXPECT_EQ(server_->Health(""), Status::SERVING);
  fakes_.loads->Hold();
  auto load = std::async(std::launch::async, [&] { return Load(); });
  fakes_.loads->WaitUntilBlocked();
  EXPECT_EQ(server_->Health(""), Status::SERVING);
  EXPECT_EQ(server_->Health("aft.v1.InferenceService/m"), Status::NOT_SERVING);
  fakes_.loads->Resume();
  ASSERT_TRUE(load.get().ok());
  EXPECT_EQ(server_->Health("aft.v1.InferenceService/m"), Status::SERVING);
  AddVersion("new/1");
  ASSERT_TRUE(Load("new").ok());
  EXPECT_EQ(server_->Health("aft.v1.InferenceService/new"), Status::SERVING);
}

TEST_F(OipRepositoryTest, ALoadContinuesWhenItsCallerLeaves) {
  Start();
  AddVersion("m/2");
  fakes_.loads->Hold();
  grpc::ClientContext context;
  std::thread caller([&] {
    inference::RepositoryModelLoadResponse response;
    const auto request = Order<inference::RepositoryModelLoadRequest>("m");
    EXPECT_THAT(oip().RepositoryModelLoad(&context, request, &response),
                StatusIs(absl::StatusCode::kCancelled, _));
  });
  fakes_.loads->WaitUntilBlocked();
  context.TryCancel();
  caller.join();
  EXPECT_EQ(Infer(), "1");
  fakes_.loads->Resume();
  EXPECT_TRUE(Load().ok());  // waits for the first load
  EXPECT_THAT(Index(), ElementsAre("m 2 READY "));
}

TEST_F(OipRepositoryTest, AWaitingOrderOfAFormerAdminIsDropped) {
  config_.repository.control = "admin";
  KnowClients();
  const std::string admins = ReadBytes(config_.security.clients_file);
  WriteBytes(config_.security.clients_file,
             absl::StrReplaceAll(admins, {{"name: 'b'", "name: 'b' admin: true"}}));
  AddVersion("n/1");
  Start();
  ASSERT_TRUE(Unload(Order<inference::RepositoryModelUnloadRequest>("n"), "admin").ok());
  AddVersion("m/2");
  fakes_.loads->Hold();
  auto running = std::async(std::launch::async, [&] { return Load("m", "admin"); });
  fakes_.loads->WaitUntilBlocked();
  // Orders of the other admin wait after the running one. When they are charged, each is in the
  // queue or about to enter it.
  const auto load = Order<inference::RepositoryModelLoadRequest>("n");
  const auto unload = Order<inference::RepositoryModelUnloadRequest>("m");
  auto queued_load = std::async(std::launch::async, [&] { return Load(load, "token"); });
  auto queued_unload = std::async(std::launch::async, [&] { return Unload(unload, "token"); });
  server_->WaitForMetric("aft_memory_used_bytes",
                         3 * (16 << 10) + 2.0 * static_cast<double>(load.ByteSizeLong()) +
                             static_cast<double>(unload.ByteSizeLong()));
  WriteBytes(config_.security.clients_file, admins);
  ASSERT_TRUE(server_->server().Reload(config_).ok());
  const auto dropped = StatusIs(absl::StatusCode::kPermissionDenied,
                                "client \"b\" is no admin in security.clients_file");
  EXPECT_THAT(queued_load.get(), dropped);  // while the loader is still busy
  EXPECT_THAT(queued_unload.get(), dropped);
  fakes_.loads->Resume();
  EXPECT_TRUE(running.get().ok());
  EXPECT_TRUE(Load("m", "admin").ok());  // it would run after the dropped orders
  EXPECT_THAT(Index(/*ready=*/false, "admin"),
              ElementsAre("m 2 READY ", "n 1 UNAVAILABLE unloaded"));
}

TEST_F(OipRepositoryTest, AftctlListsLoadsAndUnloads) {
  Start();
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {AFTCTL, "repository"});
    arguments.insert(arguments.end(), {"--address", server_->server().address()});
    return client::RunToEnd(arguments);
  };
  AddVersion("m/2");
  EXPECT_EQ(run({"load", "m"}).code, 0);
  EXPECT_EQ(run({"list"}).out, "m\t2\tready\n");
  AddVersion("m/3");
  std::ofstream(folder_.File("m/3/bad")) << "x";
  const client::Ended failed = run({"load", "m"});
  EXPECT_NE(failed.code, 0);
  EXPECT_THAT(failed.err, HasSubstr("version \"3\": weights: are bad"));
  EXPECT_EQ(run({"list"}).out, "m\t3\tfailed\tweights: are bad\nm\t2\tready\n");
  EXPECT_EQ(run({"unload", "m"}).code, 0);
  EXPECT_EQ(run({"list"}).out, "m\t3\tunloaded\nm\t2\tunloaded\n");
  EXPECT_EQ(run({"load"}).code, 2);
  EXPECT_EQ(run({"list", "m"}).code, 2);
}

TEST_F(OipRepositoryTest, AServerStopsWithOrdersUnderWay) {
  Start();
  AddVersion("m/2");
  fakes_.control->Hold();
  GenerateStream stream(server_->inference(), Native());
  fakes_.control->WaitUntilBlocked();
  std::vector<std::thread> callers;
  callers.emplace_back([&] { EXPECT_TRUE(Unload().ok()); });  // waits for the stream to end
  while (Ready("")) {
  }
  fakes_.loads->Hold();
  for (int i = 0; i < 2; ++i) {
    callers.emplace_back([&] { EXPECT_FALSE(Load().ok()); });  // CANCELLED by the GOAWAY
  }
  fakes_.loads->WaitUntilBlocked();
  std::thread stop([&] { server_->server().Drain(); });
  server_->server().RequestDrain();
  while (Infer() == "model \"m\" is loading") {
  }
  fakes_.control->Resume();
  fakes_.loads->Resume();
  stop.join();
  for (std::thread& caller : callers) caller.join();
  stream.Finish();
}

TEST_F(OipRepositoryTest, AReloadAppliesSomeFieldsAndRefusesOthers) {
  Start();
  AddVersion("m/2");
  ServerConfig changed = config_;
  changed.limits.max_queued_requests = 7;
  changed.drain.grace = std::chrono::milliseconds(1);
  EXPECT_THAT(server_->server().Reload(changed),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("limits.max_queued_requests: 256 -> 7"),
                             HasSubstr("drain.grace_ms: 30000 -> 1"))));
  changed = config_;
  changed.repository.folder = "elsewhere";
  EXPECT_THAT(server_->server().Reload(changed),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("repository.folder")));
  changed = config_;
  changed.log.level = "loud";
  EXPECT_THAT(server_->server().Reload(changed),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("log.level")));
  EXPECT_EQ(Infer(), "1");
  changed = config_;
  changed.log.level = "error";
  changed.repository.latest_versions = 0;
  changed.repository.control = "none";
  EXPECT_EQ(server_->server().Reload(changed), absl::OkStatus());
  while (Index(true).size() != 2) {
  }
  EXPECT_EQ(Infer(), "2");
  EXPECT_EQ(Infer("1"), "1");
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kPermissionDenied, _));
  EXPECT_EQ(server_->server().Reload(config_), absl::OkStatus());  // restores the config
}
}  // namespace
}  // namespace aft::server
