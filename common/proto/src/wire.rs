//! Frames: a little-endian `u32` length, then one postcard message. The length
//! is checked against the cap before a byte of the body is kept.

use crate::units::FRAME_BYTES_MAX;
use serde::{Serialize, de::DeserializeOwned};

/// Bytes of the length in front of a frame.
pub const PREFIX_BYTES: usize = 4;

/// Why a frame could not be made or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The frame would be larger than the cap.
    #[error("frame of {bytes} bytes is larger than {most}")]
    TooLarge {
        /// What its prefix said.
        bytes: usize,
        /// The cap.
        most: usize,
    },
    /// The bytes are not a message of this protocol.
    #[error("frame is not a message: {0}")]
    Malformed(String),
}

/// Encodes a message as a frame with its length in front.
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, WireError> {
    let mut frame = vec![0; PREFIX_BYTES];
    frame = postcard::to_extend(message, frame).map_err(|e| WireError::Malformed(e.to_string()))?;
    let bytes = frame.len() - PREFIX_BYTES;
    if bytes > FRAME_BYTES_MAX {
        return Err(WireError::TooLarge { bytes, most: FRAME_BYTES_MAX });
    }
    frame[..PREFIX_BYTES].copy_from_slice(&(bytes as u32).to_le_bytes());
    Ok(frame)
}

/// Reads the length in front of a frame, which may have `most` bytes.
pub fn body_bytes(prefix: [u8; PREFIX_BYTES], most: usize) -> Result<usize, WireError> {
    let bytes = u32::from_le_bytes(prefix) as usize;
    if bytes > most { Err(WireError::TooLarge { bytes, most }) } else { Ok(bytes) }
}

/// Decodes the body of a frame; all of it must be used.
pub fn decode<M: DeserializeOwned>(body: &[u8]) -> Result<M, WireError> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(WireError::Malformed(format!("{} bytes left over", rest.len()))),
        Err(error) => Err(WireError::Malformed(error.to_string())),
    }
}
