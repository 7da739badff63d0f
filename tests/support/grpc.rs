//! The generated gRPC client, called without `async`.

use std::net::SocketAddr;

use tokio::runtime::{Builder, Runtime};
use tonic::{
    Response, Status,
    body::Body,
    codegen::{Body as _, Service, http},
    transport::Channel,
};
use troupe_proto::inference::{
    ModelInferRequest, ModelInferResponse, ModelStreamInferResponse,
    grpc_inference_service_client::GrpcInferenceServiceClient,
    model_infer_request::InferInputTensor,
};

use super::PATIENCE;

pub(crate) type Client = GrpcInferenceServiceClient<Channel>;

/// One connection.
pub(crate) struct Grpc {
    runtime: Runtime,
    channel: Channel,
    client: Client,
}

impl Grpc {
    pub(crate) fn connect(address: SocketAddr) -> Grpc {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let channel = Channel::from_shared(format!("http://{address}")).unwrap().timeout(PATIENCE);
        let channel = runtime.block_on(channel.connect()).unwrap();
        let client = Client::new(channel.clone())
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX);
        Grpc { runtime, channel, client }
    }

    /// Calls something: `grpc.call(async |it| it.server_live(…).await)`.
    pub(crate) fn call<T>(
        &mut self,
        call: impl AsyncFnOnce(&mut Client) -> Result<Response<T>, Status>,
    ) -> Result<T, Status> {
        self.runtime.block_on(call(&mut self.client)).map(Response::into_inner)
    }

    pub(crate) fn infer(
        &mut self,
        request: ModelInferRequest,
    ) -> Result<ModelInferResponse, Status> {
        self.call(async |it| it.model_infer(request).await)
    }

    /// Sends all, and waits for the end of the stream.
    pub(crate) fn stream(
        &mut self,
        requests: Vec<ModelInferRequest>,
    ) -> Result<Vec<ModelStreamInferResponse>, Status> {
        self.runtime.block_on(async {
            let requests = tokio_stream::iter(requests);
            let mut stream = self.client.model_stream_infer(requests).await?.into_inner();
            let mut all = Vec::new();
            while let Some(it) = stream.message().await? {
                all.push(it);
            }
            Ok(all)
        })
    }

    /// For the other services of the gRPC listener.
    pub(crate) fn run_on_channel<T>(&mut self, call: impl AsyncFnOnce(Channel) -> T) -> T {
        self.runtime.block_on(call(self.channel.clone()))
    }

    /// Sends a body as it is, its five bytes of prefix included; the number of the status.
    pub(crate) fn send_raw(&mut self, address: SocketAddr, body: &str) -> String {
        let request = http::Request::post(format!(
            "http://{address}/inference.GRPCInferenceService/ModelInfer"
        ))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(body.to_owned()))
        .unwrap();
        self.runtime.block_on(async {
            let mut channel = self.channel.clone();
            std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
            let answer = channel.call(request).await.unwrap();
            let status = answer.headers().get("grpc-status").cloned();
            let status = match status {
                Some(status) => status,
                None => {
                    let mut body = std::pin::pin!(answer.into_body());
                    loop {
                        let next = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await;
                        let frame = next.expect("an answer ends with a status").unwrap();
                        if let Ok(trailers) = frame.into_trailers() {
                            break trailers["grpc-status"].clone();
                        }
                    }
                }
            };
            status.to_str().unwrap().to_owned()
        })
    }

    /// For tests that need more than a call: two at a time, or one that is given up.
    pub(crate) fn run<T>(&mut self, call: impl AsyncFnOnce(&mut Client) -> T) -> T {
        self.runtime.block_on(call(&mut self.client))
    }
}

/// A request of FP32 inputs with one dimension, as raw bytes.
pub(crate) fn floats(model: &str, inputs: &[(&str, &[f32])]) -> ModelInferRequest {
    ModelInferRequest {
        model_name: model.to_owned(),
        inputs: inputs
            .iter()
            .map(|(name, data)| InferInputTensor {
                name: (*name).to_owned(),
                datatype: "FP32".to_owned(),
                shape: vec![data.len() as i64],
                ..Default::default()
            })
            .collect(),
        raw_input_contents: inputs.iter().map(|(_, data)| bytes_of(data).into()).collect(),
        ..Default::default()
    }
}

/// A request whose input `x` is so many bytes, each a 7.
pub(crate) fn bytes(model: &str, size: usize) -> ModelInferRequest {
    ModelInferRequest {
        model_name: model.to_owned(),
        inputs: vec![InferInputTensor {
            name: "x".to_owned(),
            datatype: "UINT8".to_owned(),
            shape: vec![size as i64],
            ..Default::default()
        }],
        raw_input_contents: vec![vec![7; size].into()],
        ..Default::default()
    }
}

/// Floats as tensors have them.
pub(crate) fn bytes_of(data: &[f32]) -> Vec<u8> {
    data.iter().flat_map(|it| it.to_le_bytes()).collect()
}

/// And back.
pub(crate) fn floats_of(data: &[u8]) -> Vec<f32> {
    data.as_chunks::<4>().0.iter().map(|it| f32::from_le_bytes(*it)).collect()
}
