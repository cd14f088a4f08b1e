// The camera: one stream that all parts of the page share.

import { h } from "./dom.js";

const SIDE = 320; // pixels of a recorded picture
let stream = null;
const users = new Set();

export async function start(video, user) {
  if (!navigator.mediaDevices) throw new Error("The browser offers the camera at 127.0.0.1 and over HTTPS only.");
  users.add(user);
  if (!stream) {
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { width: 640, height: 480 }, audio: false });
    } catch (error) {
      users.delete(user);
      throw new Error(error.name === "NotFoundError" ? "There is no camera on this device."
        : "The camera cannot be used. Allow it in the browser, and close other programs that use it.");
    }
  }
  video.srcObject = stream;
  await video.play();
}

export function stop(user) {
  users.delete(user);
  if (users.size || !stream) return;
  for (const track of stream.getTracks()) track.stop();
  stream = null;
}

// The central square of the current frame as a JPEG file.
export function frame(video, name = "camera.jpg") {
  const side = Math.min(video.videoWidth, video.videoHeight);
  const canvas = h("canvas", { width: SIDE, height: SIDE });
  canvas.getContext("2d").drawImage(video, (video.videoWidth - side) / 2, (video.videoHeight - side) / 2, side, side,
    0, 0, SIDE, SIDE);
  return new Promise((resolve) => canvas.toBlob((blob) => {
    resolve(new File([blob], name, { type: "image/jpeg" }));
  }, "image/jpeg", 0.92));
}

export const preview = () => h("video", { muted: true, playsinline: "", "aria-label": "Camera" });
