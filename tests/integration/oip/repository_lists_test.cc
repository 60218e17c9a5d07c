// The lists of models, when the folder of a model leaves the repository and comes back.
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "grpc/health/v1/health.pb.h"
#include "gtest/gtest.h"
#include "tests/integration/oip/repository_fixture.h"
#include "tests/integration/server_fixture.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(OipRepositoryTest, AModelWhoseFolderIsGoneIsInNoListUntilItIsBack) {
  using Status = grpc::health::v1::HealthCheckResponse;
  const std::string service = "aft.v1.InferenceService/m";
  AddVersion("n/1");
  Start();
  const auto reload = [this] {
    ASSERT_TRUE(server_->server().Reload(config_).ok());
    ASSERT_TRUE(Load("n").ok());  // waits for the reload
  };
  HealthWatch watch(*server_, service);
  EXPECT_EQ(watch.Next(), Status::SERVING);
  std::filesystem::remove_all(folder_.File("m"));
  reload();
  EXPECT_EQ(watch.Next(), Status::SERVICE_UNKNOWN);
  EXPECT_EQ(server_->Health(service), Status::SERVICE_UNKNOWN);
  EXPECT_THAT(Index(), ElementsAre("n 1 READY "));
  grpc::ClientContext context;
  v1::ListResponse list;
  ASSERT_TRUE(server_->models().List(&context, {}, &list).ok());
  ASSERT_EQ(list.models_size(), 1);
  EXPECT_EQ(list.models(0).name(), "n");
  EXPECT_EQ(Infer(), "model \"m\" is not loaded");
  EXPECT_THAT(server_->Metrics(), HasSubstr("aft_oldest_waiting_seconds{model=\"m\"} 0\n"));
  AddVersion("m/2");
  reload();
  EXPECT_EQ(server_->Health(service), Status::SERVING);
  EXPECT_THAT(Index(), ElementsAre("m 2 READY ", "n 1 READY "));
  EXPECT_EQ(Infer(), "2");
  watch.Cancel();
  watch.Finish();
}

}  // namespace
}  // namespace aft::server
